-- Messages by id, with the beginnings of their bodies, their outcomes, their places, the errors
-- of archived messages and dead letters, and the header of a message in a dead-letter queue. Large values are left out, since reading the beginning of
-- one decompresses all of it.
SELECT m.id, m.queue_id, q.name, m.enqueued_at, m.scheduled_at, m.expires_at, m.priority,
       m.group_key, m.unique_key,
       CASE WHEN %(length)s::int IS NULL THEN m.headers::text END,
       CASE WHEN pg_column_size(m.body) <= %(bodies)s
            THEN left(m.body::text, coalesce(%(length)s::int, 2147483647)) END,
       pg_column_size(m.body), a.state, a.archived_at, a.read_ct,
       coalesce(a.error, CASE WHEN pg_column_size(m.headers) <= 100000
                              THEN m.headers #>> '{{x-dead-letter,error}}' END),
       CASE WHEN s.place IS NOT NULL AND pg_column_size(m.headers) <= 100000
                 AND EXISTS (SELECT FROM pgqueue_queue WHERE dead_letter_queue_id = q.id)
            THEN jsonb_build_object('x-dead-letter', m.headers -> 'x-dead-letter')::text END, s.*
FROM pgqueue_message m
JOIN pgqueue_queue q ON q.id = m.queue_id
LEFT JOIN pgqueue_archive a ON a.id = m.id AND a.queue_id = m.queue_id AND a.enqueued_at = m.enqueued_at
                               AND a.queue_id = ANY(%(queues)s::int[])
LEFT JOIN LATERAL ({of_message}) s ON true
WHERE m.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND m.queue_id = ANY(%(queues)s::int[])
