-- A batch of live messages, whatever their state. Rows that others hold locked are passed by.
WITH held AS MATERIALIZED (
    SELECT ctid FROM {deferred} WHERE queue_id = {queue_id}
    LIMIT %(batch)s FOR UPDATE SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT ctid FROM {ready} WHERE queue_id = {queue_id}
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
