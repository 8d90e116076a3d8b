-- Delete messages, live or archived, with all rows that refer to them. P3, P4.
WITH {settle/gone},
done AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
),
steps AS (
    DELETE FROM pgqueue_step
    WHERE queue_id = {queue_id} AND message_id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
),
waits AS (
    DELETE FROM pgqueue_wait
    WHERE queue_id = {queue_id} AND message_id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
),
notes AS (
    DELETE FROM pgqueue_note
    WHERE queue_id = {queue_id} AND message_id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) RETURNING id
