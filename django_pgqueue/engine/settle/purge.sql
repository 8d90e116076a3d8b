-- Delete a batch of live messages in any place. Skips locked rows. P1. Waiting messages go first:
-- otherwise each deleted head would make the next message of its group a head.
WITH behind AS MATERIALIZED (
    SELECT ctid FROM pgqueue_waiting WHERE queue_id = {queue_id}
    ORDER BY group_key, id
    LIMIT (SELECT %(batch)s::bigint) FOR UPDATE SKIP LOCKED
),
batches AS MATERIALIZED (
    SELECT ctid FROM pgqueue_lease WHERE queue_id = {queue_id}
    ORDER BY vt
    LIMIT (SELECT 1 + %(batch)s::bigint / 100) FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT ctid FROM pgqueue_deferred WHERE queue_id = {queue_id}
    ORDER BY vt
    LIMIT %(batch)s - (SELECT count(*) FROM behind) FOR UPDATE SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT ctid FROM pgqueue_ready WHERE queue_id = {queue_id}
    ORDER BY -priority, turn
    LIMIT %(batch)s - (SELECT count(*) FROM behind) - (SELECT count(*) FROM held)
    FOR UPDATE SKIP LOCKED
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT ctid FROM behind)) RETURNING id
),
leased AS (
    DELETE FROM pgqueue_lease WHERE ctid = ANY(ARRAY(SELECT ctid FROM batches)) RETURNING ids
),
gone AS (
    DELETE FROM pgqueue_deferred WHERE ctid = ANY(ARRAY(SELECT ctid FROM held)) RETURNING id
),
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ctid FROM waiting)) RETURNING id
),
deleted AS (
    DELETE FROM {message}
    WHERE id = ANY(ARRAY(SELECT id FROM queued UNION ALL SELECT id FROM gone
                         UNION ALL SELECT unnest(ids) FROM leased
                         UNION ALL SELECT id FROM unread))
    RETURNING 1
)
SELECT count(*){and_leased} FROM deleted
