-- Move a subscription to another position, and count its losses anew, but for those that no signal has
-- told. Returns its number, or nothing if a read has moved it.
WITH place AS MATERIALIZED (
    SELECT number FROM pgqueue_cursor WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1
),
gone AS (
    DELETE FROM pgqueue_cursor WHERE queue_id = {queue_id} AND number = (SELECT number FROM place)
    RETURNING number, last_id, lost - told AS untold
)
INSERT INTO pgqueue_cursor (queue_id, number, last_id, lost, system, since, until, after_xid, after_id)
SELECT {queue_id}, coalesce(g.number, 0) + 1, coalesce(g.last_id, 0), coalesce(g.untold, 0),
       s.system_identifier, %(since)s::pg_snapshot, %(until)s::pg_snapshot,
       %(after_xid)s::bigint, %(after_id)s::bigint
FROM pg_control_system() s LEFT JOIN gone g ON true
WHERE g.number IS NOT NULL OR NOT EXISTS (SELECT FROM place)
RETURNING number
