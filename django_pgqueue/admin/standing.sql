-- The place of a message m, its deliveries, whether it has a lease (even an expired one), and the
-- consumer process that holds the lease. The part places/first reads the message's group from g.
-- P3, P5.

-- {standing/of}: one row, or no row if the message is no longer in a queue
(SELECT CASE WHEN {places/due} THEN 'due' WHEN {places/in_flight} THEN 'in_flight'
             WHEN {places/delayed} THEN 'delayed' END AS place,
        vt, read_ct, attempts, first_read_at, last_read_at, state = 'PROCESSING' AS leased,
        process_id AS holder
 FROM pgqueue_deferred d WHERE d.id = m.id AND d.queue_id + 0 = m.queue_id OFFSET 0)
UNION ALL
(SELECT CASE WHEN {places/due} THEN 'due' ELSE 'in_flight' END,
        vt, 1, 0, read_at, read_at, true, process_id
 FROM pgqueue_lease l
 WHERE int8range(l.head, l.tail, '[]') @> m.id AND l.queue_id + 0 = m.queue_id
   AND m.id = ANY(l.ids) LIMIT 1)
UNION ALL
(SELECT coalesce(f.place, 'waiting'),
        w.vt, w.read_ct, w.attempts, w.first_read_at, w.last_read_at, false, NULL
 FROM pgqueue_waiting w
 LEFT JOIN LATERAL (SELECT f.id, f.place FROM (SELECT w.group_key) g
                    CROSS JOIN LATERAL ({places/first}) f) f ON f.id = w.id
 WHERE w.queue_id = m.queue_id AND w.group_key = m.group_key AND w.id = m.id OFFSET 0)
UNION ALL
(SELECT 'ready', NULL, 0, 0, NULL, NULL, false, NULL FROM pgqueue_ready r
 WHERE r.queue_id = m.queue_id AND -r.priority = -m.priority::smallint
   AND r.turn = {places/turn} AND r.id = m.id OFFSET 0)

-- {standing/all}: the same for several messages, each looked up by its keys
SELECT m.id, m.queue_id, s.*
FROM unnest(%(ids)s::bigint[], %(queues)s::int[], %(priorities)s::int[], %(groups)s::text[])
     AS m (id, queue_id, priority, group_key)
CROSS JOIN LATERAL ({of_message}) s

-- {standing/reasons}: why several messages are not delivered now
WITH asked AS MATERIALIZED (
    SELECT m.id, m.queue_id, m.group_key, s.*
    FROM unnest(%(ids)s::bigint[], %(queues)s::int[], %(priorities)s::int[], %(groups)s::text[])
         AS m (id, queue_id, priority, group_key)
    CROSS JOIN LATERAL ({reasons/standing}) s
),
{reasons/facts}
SELECT s.id, s.queue_id, {reasons/reason} FROM {reasons/from}
