-- Fail messages: move them to the dead-letter queue, with their ids and a header that has the source,
-- the error and the counts. The trigger on that queue's partition makes them readable. Those of a
-- subscription get new ids, since the source still has the old ones; the header has them, as "id". Fenced.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/fence}
    RETURNING id, read_ct, attempts, error
),
moved AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    RETURNING id, enqueued_at, headers, {kept_columns}
),
sent AS (
    INSERT INTO {dead_message} (id, queue_id, failure, source_id, headers, {kept_columns})
    SELECT {dead_letter_id}, {dead_queue_id}, {errors/kind}, {queue_id},
           CASE jsonb_typeof(m.headers) WHEN 'object' THEN m.headers ELSE '{{}}' END
               || jsonb_build_object('x-dead-letter', jsonb_build_object(
               {dead_letter_origin}'source', %(source)s::text,
               'reason', %(reason)s::text,
               'error', e.text,
               'read_ct', gone.read_ct,
               'attempts', gone.attempts + %(ran)s,
               'enqueued_at', m.enqueued_at,
               'dead_lettered_at', statement_timestamp(),
               -- The sender may have written any value into the header: none may raise an error.
               'count', 1 + CASE jsonb_typeof(m.headers #> '{{x-dead-letter,count}}')
                   WHEN 'number' THEN (m.headers #> '{{x-dead-letter,count}}')::numeric ELSE 0 END)),
           {kept_columns}
    FROM moved m JOIN gone ON gone.id = m.id
    CROSS JOIN LATERAL (SELECT {settle/error} AS text OFFSET 0) e
)
SELECT id FROM moved
