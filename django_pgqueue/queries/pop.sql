-- Take and forget: delivered at most once. In the order of read; no delivery is counted.
-- The rows with the ids 0, -1 and -2 say what they say for read.
WITH recheck AS MATERIALIZED (
    SELECT FROM {recheck} WHERE queue_id = {queue_id} AND %(heed)s ORDER BY id LIMIT 1
),
ended AS MATERIALIZED (
    SELECT FROM {lease}
    WHERE queue_id = {queue_id} AND vt <= statement_timestamp() AND %(heed)s
    ORDER BY vt LIMIT 1
),
due AS MATERIALIZED (
    SELECT d.ctid, d.group_key IS NOT NULL AND d.id IS DISTINCT FROM (
               SELECT g.head FROM {group} g
               WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key) AS blocked
    FROM {deferred} d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND (%(max_deliveries)s::integer IS NULL OR d.read_ct < %(max_deliveries)s::integer)
    ORDER BY d.vt
    LIMIT (SELECT CASE WHEN EXISTS (SELECT FROM ended) THEN 0 ELSE %(qty)s::bigint END)
    FOR UPDATE OF d SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT ctid FROM {ready}
    WHERE queue_id = {queue_id}
    ORDER BY -priority, id
    LIMIT CASE WHEN EXISTS (SELECT FROM recheck) OR EXISTS (SELECT FROM ended) THEN 0
               ELSE %(qty)s - (SELECT count(*) FROM due) END
    FOR UPDATE SKIP LOCKED
),
retried AS (
    DELETE FROM {deferred} WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT blocked))
    RETURNING id, enqueued_at, read_ct, attempts, vt, first_read_at
),
taken AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM fresh))
    RETURNING id, enqueued_at, 0, 0, enqueued_at, NULL::timestamptz
),
popped AS MATERIALIZED (
    SELECT * FROM retried UNION ALL SELECT * FROM taken
),
gone AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM popped))
    RETURNING id, body, headers, priority, group_key
)
SELECT p.id, g.body, g.headers, p.enqueued_at, g.priority, g.group_key,
       p.read_ct, p.attempts, p.vt, p.first_read_at
FROM popped p JOIN gone g ON g.id = p.id
UNION ALL
SELECT 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM recheck
UNION ALL
SELECT -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE EXISTS (SELECT FROM due WHERE blocked)
UNION ALL
SELECT -2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM ended
ORDER BY priority DESC, id
