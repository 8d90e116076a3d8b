-- Delete messages, live or archived, with all rows that refer to them. P3, P4.
WITH held AS (
    DELETE FROM pgqueue_deferred WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
),
{settle/place},
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
),
done AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) RETURNING id
