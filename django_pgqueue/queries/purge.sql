-- A batch of live messages, whatever their state. Rows that others hold locked are passed by.
-- In the order of the index, and with a limit the planner cannot see: it would go through the
-- rows of all other queues to find the first of this one.
WITH held AS MATERIALIZED (
    SELECT ctid FROM {deferred} WHERE queue_id = {queue_id}
    ORDER BY vt
    LIMIT (SELECT %(batch)s::bigint) FOR UPDATE SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT ctid FROM {ready} WHERE queue_id = {queue_id}
    ORDER BY priority DESC, id
    LIMIT %(batch)s - (SELECT count(*) FROM held) FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {deferred} WHERE ctid = ANY(ARRAY(SELECT ctid FROM held)) RETURNING id
),
unread AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM waiting)) RETURNING id
),
deleted AS (
    DELETE FROM {message}
    WHERE id = ANY(ARRAY(SELECT id FROM gone UNION ALL SELECT id FROM unread))
    RETURNING 1
)
SELECT count(*) FROM deleted
