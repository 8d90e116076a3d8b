-- Move followers back to waiting if their lease expired before their head was settled. They keep
-- their counts and times. P1.
WITH due AS MATERIALIZED (
    SELECT d.ctid AS place, d.id, d.group_key
    FROM pgqueue_deferred d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp() AND d.group_key IS NOT NULL
      AND d.id <> (SELECT g.head FROM pgqueue_group g
                   WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key)
    ORDER BY d.vt
    LIMIT (SELECT %(batch)s::bigint)
    FOR UPDATE OF d SKIP LOCKED
),
-- Lock the groups, so that no head changes before the followers are back in waiting.
held AS MATERIALIZED (
    SELECT g.group_key, g.head FROM pgqueue_group g
    WHERE g.queue_id = {queue_id}
      AND g.group_key = ANY(ARRAY(SELECT DISTINCT group_key FROM due))
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_deferred
    WHERE ctid = ANY(ARRAY(
        SELECT d.place FROM due d JOIN held h ON h.group_key = d.group_key AND h.head <> d.id))
    RETURNING *
)
INSERT INTO pgqueue_waiting (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts,
                       priority, group_key)
SELECT id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts, priority,
       group_key
FROM gone
WHERE {leases/unflushed}
RETURNING id
