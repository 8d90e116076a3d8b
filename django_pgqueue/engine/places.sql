-- The place of a message: where it is counted and listed. Statements include these parts, so that
-- all counts, lists and pages agree.
--
-- ready      readable, never read: a row of ready, or the first message of a group without a head
-- due        readable again after its lease or delay: a row of deferred or lease
-- in_flight  leased: a row of lease, or a row of deferred in the state PROCESSING
-- delayed    readable from vt on: any other row of deferred, or the first message of a group
--            without a head
-- waiting    behind another message of its FIFO group: any other row of waiting
--
-- The conditions test the columns vt and state of deferred or pgqueue_live. The table lease has no
-- column state: its rows count as PROCESSING.

-- {places/due}: vt has passed. Uses the index (queue_id, vt)
vt <= statement_timestamp()

-- {places/not_due}: vt is in the future. Uses the same index
vt > statement_timestamp()

-- {places/in_flight}
{places/not_due} AND state = 'PROCESSING'

-- {places/delayed}
{places/not_due} AND state <> 'PROCESSING'

-- {places/expired}: the message must not be delivered any more. A condition on a row of the
-- messages' table. Without the cast from the domain, another schema's operator could match better
-- (ddl/wake.sql).
expires_at::timestamptz <= statement_timestamp()

-- {places/first}: the first message of the group g.group_key in the queue {of}, with its place, if
-- the group has no head. P5.
SELECT w.*, CASE WHEN {places/not_due} THEN 'delayed' ELSE 'ready' END AS place
FROM (SELECT * FROM pgqueue_waiting WHERE queue_id = {of} AND group_key = g.group_key
      ORDER BY id LIMIT 1) w
LEFT JOIN LATERAL (SELECT true AS found FROM pgqueue_group h
                   WHERE h.queue_id = {of} AND h.group_key = g.group_key
                   ORDER BY h.slot LIMIT (SELECT 1)) h ON true
WHERE h.found IS NULL

-- {places/headless}: the first message of each group without a head in the queue {of}. P1.
SELECT f.*
FROM (SELECT DISTINCT group_key
      FROM (SELECT group_key FROM pgqueue_recheck WHERE queue_id = {of}
            ORDER BY id LIMIT (SELECT {places/rechecks})) r) g
CROSS JOIN LATERAL ({places/first}) f

-- {places/rechecks}: how many rechecks are searched for groups without a head. One read processes
-- as many (groups/promote.sql).
1000

-- {places/turn}: the turn of message m in the queue {of}, if m is in ready
coalesce((SELECT h.turn FROM pgqueue_group h
          WHERE h.queue_id = {of} AND h.group_key = m.group_key AND h.head = m.id LIMIT 1), m.id << 20)
