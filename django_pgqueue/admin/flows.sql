-- The newest steps of a message, up to a limit, its notes, and its wait, in the order of time: the name (NULL for a
-- note), the time, the beginning of the value, and whether it still waits. The oldest row of more steps than the
-- limit stands for all that are not shown: its fourth column has their number, which is 0 in other rows.
WITH origin AS MATERIALIZED (
    -- A subscription's messages have the ids of its source's, so their steps are kept apart.
    SELECT q.id AS queue_id, %(id)s::bigint AS message_id
    FROM pgqueue_queue q
    WHERE q.id = %(queue_id)s
       OR (q.source_id IS NULL AND NOT %(subscribed)s AND (%(everywhere)s OR q.id = %(source)s))
    UNION ALL
    -- The subscription from which a dead letter came, and the id that it had there.
    SELECT q.id, (m.headers #>> '{{x-dead-letter,id}}')::bigint
    FROM {message} m JOIN pgqueue_queue q ON q.id = m.source_id AND q.source_id IS NOT NULL
    WHERE m.id = %(id)s AND NOT %(subscribed)s
),
step AS MATERIALIZED (
    SELECT s.name, s.at, s.value, count(*) OVER () AS number,
           row_number() OVER (ORDER BY s.at DESC, s.name DESC) AS place
    FROM origin o CROSS JOIN LATERAL (
        SELECT name, at, value FROM pgqueue_step
        WHERE queue_id = o.queue_id AND message_id = o.message_id OFFSET 0) s
    ORDER BY place LIMIT %(most)s + 1
)
-- Only here, so that the values of other steps are not read.
SELECT name, at, left(value::text, %(length)s + 1),
       CASE WHEN place > %(most)s THEN number - %(most)s ELSE 0 END, false
FROM step
UNION ALL
SELECT NULL, n.at, left(n.value::text, %(length)s + 1), 0, false
FROM origin o CROSS JOIN LATERAL (
    SELECT at, value FROM pgqueue_note
    WHERE queue_id = o.queue_id AND message_id = o.message_id OFFSET 0) n
UNION ALL
SELECT w.name, w.at, NULL, 0, true
FROM origin o CROSS JOIN LATERAL (
    SELECT name, at FROM pgqueue_wait
    WHERE queue_id = o.queue_id AND message_id = o.message_id OFFSET 0) w
ORDER BY 2, 4 DESC, 1
