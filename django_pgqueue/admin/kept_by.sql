-- What became of a message in each subscription of its queue: the id and name of the subscription, the
-- state, and whether the subscription has a copy of the message.
SELECT q.id, q.name,
       coalesce(own.state,
                CASE WHEN EXISTS (SELECT FROM pgqueue_lease l
                                  WHERE l.queue_id = q.id AND l.ids @> ARRAY[m.id]
                                    AND m.id BETWEEN l.head AND l.tail) THEN 'IN_FLIGHT'
                     WHEN c.number IS NULL OR c.system <> s.system_identifier THEN 'LOST'
                     WHEN pgqueue_passed(c.position, m.enqueued_xid, m.id) THEN 'READ'
                     ELSE 'UNREAD' END),
       own.state IS NOT NULL
FROM pgqueue_queue q
CROSS JOIN pg_control_system() s
JOIN pgqueue_message m ON m.id = %(id)s AND m.queue_id = q.source_id
LEFT JOIN LATERAL (
    SELECT c.number, c.system, c AS position FROM pgqueue_cursor c
    WHERE c.queue_id = q.id ORDER BY c.number DESC LIMIT 1) c ON true
LEFT JOIN LATERAL (
    SELECT coalesce(
        (SELECT a.state FROM pgqueue_archive a WHERE a.id = m.id AND a.queue_id = q.id LIMIT 1),
        (SELECT CASE WHEN d.vt <= statement_timestamp() THEN 'PENDING' ELSE d.state END
         FROM pgqueue_deferred d WHERE d.id = m.id AND d.queue_id = q.id LIMIT 1),
        'PENDING') AS state
    FROM pgqueue_message o WHERE o.id = m.id AND o.queue_id = q.id LIMIT 1) own ON true
WHERE q.source_id = %(queue_id)s
ORDER BY q.name
