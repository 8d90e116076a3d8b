-- Take and forget: delivered at most once. In the order of read; no delivery is counted.
WITH due AS MATERIALIZED (
    SELECT ctid FROM {deferred}
    WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
      AND (%(max_deliveries)s::integer IS NULL OR read_ct < %(max_deliveries)s::integer)
    ORDER BY vt
    LIMIT (SELECT %(qty)s::bigint)
    FOR UPDATE SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT ctid FROM {ready}
    WHERE queue_id = {queue_id}
    ORDER BY priority DESC, id
    LIMIT %(qty)s - (SELECT count(*) FROM due)
    FOR UPDATE SKIP LOCKED
),
retried AS (
    DELETE FROM {deferred} WHERE ctid = ANY(ARRAY(SELECT ctid FROM due))
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
ORDER BY g.priority DESC, p.id
