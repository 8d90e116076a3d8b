-- Why a message in the queue is not delivered now, and until when at least, if that is known. The
-- reason is NULL if the message is in flight, or if the next read would find it. P3, P5.
SELECT CASE
           WHEN s.in_flight THEN NULL
           WHEN s.not_due AND s.vt = s.free_at THEN 'group_rate'
           WHEN s.not_due AND s.read_ct > 0 THEN 'retry'
           WHEN s.not_due THEN 'scheduled'
           WHEN q.paused THEN 'queue_paused'
           WHEN s.needs_slot AND g.paused THEN 'group_paused'
           WHEN s.needs_slot AND g.is_fifo AND g.taken > 0 THEN 'group'
           WHEN s.needs_slot AND g.leased >= g.slots AND NOT g.by_start THEN 'group_limit'
           WHEN s.needs_slot AND g.free_at IS NOT NULL THEN 'group_rate'
           WHEN s.needs_slot AND g.taken >= g.slots THEN 'group_limit'
           WHEN whole.next_at > statement_timestamp() THEN 'rate'
           WHEN whole.in_flight >= q."limit" THEN 'limit'
       END AS reason,
       CASE WHEN s.in_flight THEN NULL
            WHEN s.not_due THEN s.vt
            WHEN s.needs_slot AND NOT (g.leased >= g.slots AND NOT g.by_start) THEN g.free_at
            WHEN NOT s.needs_slot AND whole.next_at > statement_timestamp() THEN whole.next_at
       END AS until
FROM {message} m
JOIN pgqueue_queue q ON q.id = {queue_id}
CROSS JOIN LATERAL (
    (SELECT d.vt, d.read_ct, {places/in_flight} AS in_flight, {places/not_due} AS not_due,
            d.group_key IS NOT NULL AND h.head IS NULL AS needs_slot, h.free_at
     FROM pgqueue_deferred d
     LEFT JOIN LATERAL (SELECT head, free_at FROM pgqueue_group h
                        WHERE h.queue_id = {queue_id} AND h.group_key = d.group_key
                          AND h.head = d.id LIMIT 1) h ON true
     WHERE d.id = m.id AND d.queue_id + 0 = {queue_id} OFFSET 0)
    UNION ALL
    (SELECT vt, 1, {places/not_due}, false, false, NULL FROM pgqueue_lease l
     WHERE int8range(l.head, l.tail, '[]') @> m.id AND l.queue_id + 0 = {queue_id}
       AND m.id = ANY(l.ids) LIMIT 1)
    UNION ALL
    (SELECT vt, read_ct, false, {places/not_due} IS TRUE, true, NULL FROM pgqueue_waiting w
     WHERE w.queue_id = {queue_id} AND w.group_key = m.group_key AND w.id = m.id OFFSET 0)
    UNION ALL
    (SELECT NULL, 0, false, false, false, NULL
     WHERE (SELECT true FROM pgqueue_ready r
            WHERE r.queue_id = {queue_id} AND -r.priority = -m.priority::smallint
              AND r.turn = {places/turn} AND r.id = m.id
            LIMIT 1))
    LIMIT 1
) s
LEFT JOIN LATERAL (
    SELECT rule.*, slot.*
    FROM pgqueue_group_rule({queue_id}, m.group_key) rule
    CROSS JOIN LATERAL (
        SELECT count(h.head) AS taken, count(*) FILTER (WHERE d.state = 'PROCESSING') AS leased,
               min(h.free_at) FILTER (
                   WHERE h.free_at > statement_timestamp() AND h.free_at < 'infinity') AS free_at
        FROM pgqueue_group h
        LEFT JOIN pgqueue_deferred d ON d.id = h.head AND d.queue_id + 0 = {queue_id}
        WHERE h.queue_id = {queue_id} AND h.group_key = m.group_key) slot
    WHERE s.needs_slot
) g ON true
LEFT JOIN LATERAL (
    SELECT max(h.free_at) FILTER (WHERE h.slot = -1) AS next_at,
           count(d.id) FILTER (WHERE d.state = 'PROCESSING') AS in_flight
    FROM pgqueue_group h
    LEFT JOIN pgqueue_deferred d ON d.id = h.head AND d.queue_id + 0 = {queue_id}
    WHERE h.queue_id = {queue_id} AND h.group_key = '' AND (q."limit", q.rate) IS DISTINCT FROM (NULL, NULL)
) whole ON true
WHERE m.id = %(id)s
