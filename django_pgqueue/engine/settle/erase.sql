-- Delete messages, live or archived, with all rows that refer to them. P3, P4.
WITH {settle/gone},
done AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
),
-- A dead letter's steps are those of the queue from which it came.
kept AS MATERIALIZED (
    SELECT {queue_id} AS queue_id, unnest(%(ids)s::bigint[]) AS id
    UNION
    SELECT source_id, id FROM {message}
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND source_id IS NOT NULL
),
steps AS (
    DELETE FROM pgqueue_step WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM kept k CROSS JOIN LATERAL (
            SELECT ctid FROM pgqueue_step WHERE queue_id = k.queue_id AND message_id = k.id OFFSET 0) s))
),
waits AS (
    DELETE FROM pgqueue_wait WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM kept k CROSS JOIN LATERAL (
            SELECT ctid FROM pgqueue_wait WHERE queue_id = k.queue_id AND message_id = k.id OFFSET 0) s))
),
notes AS (
    DELETE FROM pgqueue_note WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM kept k CROSS JOIN LATERAL (
            SELECT ctid FROM pgqueue_note WHERE queue_id = k.queue_id AND message_id = k.id OFFSET 0) s))
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) RETURNING id
