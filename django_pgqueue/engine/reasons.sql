-- Why a message in the queue is not delivered now. Statements include these parts, so that why(),
-- peek, metrics and the admin tell the same reason. docs/limits.md lists the reasons.
--
-- A statement begins with a query "asked". It has a row for each message, or a row for all messages
-- that have the same values in these columns:
--
-- queue_id, group_key
-- in_flight    whether it is leased
-- not_due      whether its vt is in the future
-- at_rate      whether it has a slot of its group, and its vt is the slot's free_at
-- read_ct      the number of its deliveries
-- needs_slot   whether it is in a group and has no slot there
-- ahead        how many messages wait before it in its group, counted up to the group's slots
-- vt           when it is readable; only reasons/until uses it
--
-- The queries of reasons/facts follow. They read each group and each queue once.

-- {reasons/reason}: NULL if the message is in flight, or if the next read would find it
CASE
           WHEN s.in_flight THEN NULL
           WHEN s.not_due AND s.at_rate THEN 'group_rate'
           WHEN s.not_due AND s.{reasons/retry} THEN 'retry'
           WHEN s.not_due THEN 'scheduled'
           WHEN q.held = 'queue_paused' THEN q.held
           WHEN s.needs_slot AND g.paused THEN 'group_paused'
           WHEN s.needs_slot AND g.is_fifo AND g.taken + s.ahead > 0 THEN 'group'
           WHEN s.needs_slot AND g.leased >= g.slots AND NOT g.by_start THEN 'group_limit'
           WHEN s.needs_slot AND g.free_at IS NOT NULL THEN 'group_rate'
           WHEN s.needs_slot AND g.taken + s.ahead >= g.slots AND g.by_start THEN 'group'
           WHEN s.needs_slot AND g.taken + s.ahead >= g.slots THEN 'group_limit'
           ELSE q.held
       END

-- {reasons/retry}: whether a message that is not due waits for another attempt
read_ct > 0

-- {reasons/until}: the earliest time at which the message may be delivered, if that is known
CASE WHEN s.in_flight THEN NULL
            WHEN s.not_due THEN s.vt
            WHEN s.needs_slot AND NOT (g.leased >= g.slots AND NOT g.by_start) THEN g.free_at
            WHEN NOT s.needs_slot AND q.next_at > statement_timestamp() THEN q.next_at
       END

-- {reasons/facts}
grouped AS MATERIALIZED (
    SELECT k.queue_id, k.group_key, g.*
    FROM (SELECT DISTINCT queue_id, group_key FROM asked WHERE needs_slot) k
    CROSS JOIN LATERAL ({reasons/group}) g
),
whole AS MATERIALIZED (
    SELECT k.queue_id, o.* FROM (SELECT DISTINCT queue_id FROM asked) k
    CROSS JOIN LATERAL ({reasons/whole}) o
)

-- {reasons/from}: the messages s, joined with their queues q and groups g
asked s
JOIN whole q ON q.queue_id = s.queue_id
LEFT JOIN grouped g ON g.queue_id = s.queue_id AND g.group_key = s.group_key AND s.needs_slot

-- {reasons/group}: the rule of the group k, the number of its taken slots, and that of its leased ones
SELECT rule.*, slot.*
FROM pgqueue_group_rule(k.queue_id, k.group_key) rule
CROSS JOIN LATERAL (
    SELECT count(h.head) AS taken, count(*) FILTER (WHERE d.state = 'PROCESSING') AS leased,
           min(h.free_at) FILTER (
               WHERE h.free_at > statement_timestamp() AND h.free_at < 'infinity') AS free_at
    FROM (SELECT * FROM pgqueue_group h
          WHERE h.queue_id = k.queue_id AND h.group_key = k.group_key
          ORDER BY h.slot LIMIT (SELECT {reasons/slots})) h
    LEFT JOIN LATERAL (SELECT d.state FROM pgqueue_deferred d
                       WHERE d.id = h.head AND d.queue_id + 0 = k.queue_id OFFSET 0) d ON true) slot

-- {reasons/slots}: more slots than a group has. With this limit the planner uses the index: P1
32768

-- {reasons/whole}: held, the reason that holds back all messages of the queue k.queue_id, or NULL;
-- next_at, the next start that the queue's rate permits
SELECT CASE WHEN o.paused THEN 'queue_paused'
            WHEN slot.next_at > statement_timestamp() THEN 'rate'
            WHEN slot.in_flight >= o."limit" THEN 'limit' END AS held,
       slot.next_at
FROM pgqueue_queue o
LEFT JOIN LATERAL (
    SELECT (SELECT least(h.free_at, statement_timestamp() + pgqueue_spacing(o.rate, 1))
            FROM pgqueue_group h
            WHERE h.queue_id = k.queue_id AND h.group_key = '' AND h.slot = -1
              AND o.rate IS NOT NULL) AS next_at,
           (SELECT count(*) FROM pgqueue_deferred d
            WHERE d.queue_id = k.queue_id AND d.state LIKE 'PROCESSING'
              AND d.vt > statement_timestamp()) AS in_flight
    WHERE num_nonnulls(o."limit", o.rate) > 0
) slot ON true
WHERE o.id = k.queue_id

-- {reasons/slot_at}: free_at of the slot that the message d has in its group; -infinity if the slot
-- has none, NULL if d has no slot
(SELECT coalesce(h.free_at, '-infinity')
          FROM (SELECT * FROM pgqueue_group h
                WHERE h.queue_id = {of} AND h.group_key = d.group_key
                ORDER BY h.slot LIMIT (SELECT {reasons/slots})) h
          WHERE h.head = d.id LIMIT 1)

-- {reasons/standing}: the columns of asked for the message m, or no row if it is not in the queue
(SELECT d.vt, d.read_ct, {places/in_flight} AS in_flight, {places/not_due} AS not_due,
        d.group_key IS NOT NULL AND d.slot_at IS NULL AS needs_slot, d.vt = d.slot_at AS at_rate,
        0::bigint AS ahead
 FROM (SELECT d.*, {reasons/slot_at} AS slot_at
       FROM pgqueue_deferred d WHERE d.id = m.id AND d.queue_id + 0 = {of} OFFSET 0) d)
UNION ALL
(SELECT vt, 1, {places/not_due}, false, false, false, 0 FROM pgqueue_lease l
 WHERE int8range(l.head, l.tail, '[]') @> m.id AND l.queue_id + 0 = {of}
   AND m.id = ANY(l.ids) LIMIT 1)
UNION ALL
(SELECT vt, read_ct, false, {places/not_due} IS TRUE, true, false,
        (SELECT count(*) FROM (
             SELECT FROM pgqueue_waiting a
             WHERE a.queue_id = {of} AND a.group_key = m.group_key AND a.id < m.id
             ORDER BY a.id LIMIT (SELECT slots FROM pgqueue_group_rule({of}, m.group_key))) a)
 FROM pgqueue_waiting w
 WHERE w.queue_id = {of} AND w.group_key = m.group_key AND w.id = m.id OFFSET 0)
UNION ALL
(SELECT NULL, 0, false, false, false, false, 0
 WHERE (SELECT true FROM pgqueue_ready r
        WHERE r.queue_id = {of} AND -r.priority = -m.priority::smallint
          AND r.turn = {places/turn} AND r.id = m.id
        LIMIT 1))
LIMIT 1
