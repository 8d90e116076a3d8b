-- The groups of a queue and the messages of a group, for the admin. groups.py combines these parts.
-- Each part reads a limited number of rows by an index, or some blocks of a table.

-- {groups/found}: groups of a queue: paused and blocked ones first, then those with most messages.
-- Each row has first how many groups there are, whether all messages were counted, whether all other
-- rows were read, and whether groups have limits and rates of their own. With %(look)s waiting
-- messages or more, their numbers are estimated from a sample of blocks; those of small groups on the
-- page are then counted.
WITH share AS MATERIALIZED (  -- the part of the waiting messages that is read
    SELECT CASE WHEN whole THEN 1 ELSE least(
        1, %(blocks)s * current_setting('block_size')::float8
           / greatest(pg_relation_size('pgqueue_waiting'), 1)) END AS part,
        whole
    FROM (SELECT NOT EXISTS (SELECT FROM pgqueue_waiting WHERE queue_id = {queue_id} ORDER BY group_key, id
                             OFFSET (SELECT %(look)s::bigint - 1) LIMIT 1) AS whole OFFSET 0) w
),
waiting AS (
    SELECT group_key, count(*)::float8 AS number
    FROM (SELECT group_key FROM pgqueue_waiting
          WHERE queue_id = {queue_id} AND (SELECT whole FROM share)
          ORDER BY group_key, id LIMIT (SELECT %(look)s::bigint)) f
    GROUP BY group_key
    UNION ALL
    SELECT group_key, count(*) / (SELECT part FROM share)
    FROM pgqueue_waiting TABLESAMPLE SYSTEM ((SELECT 100 * part FROM share)) REPEATABLE (1)
    WHERE queue_id = {queue_id} AND NOT (SELECT whole FROM share) GROUP BY group_key
),
deferred AS MATERIALIZED (
    SELECT id, vt, state, group_key FROM pgqueue_deferred WHERE queue_id = {queue_id}
    ORDER BY vt LIMIT (SELECT %(look)s::bigint)
),
slots AS MATERIALIZED (  -- without the row of the whole queue's limit, which has the key ''
    SELECT group_key, head FROM pgqueue_group WHERE queue_id = {queue_id} AND group_key > ''
    ORDER BY group_key, slot LIMIT (SELECT %(look)s::bigint)
),
own AS MATERIALIZED (
    (SELECT group_key, paused, "limit", rate FROM pgqueue_group_setting
     WHERE queue_id = {queue_id} AND paused
     ORDER BY group_key LIMIT (SELECT %(look)s::bigint))
    UNION ALL
    (SELECT group_key, paused, "limit", rate FROM pgqueue_group_setting
     WHERE queue_id = {queue_id} AND NOT paused
     ORDER BY group_key LIMIT (SELECT %(look)s::bigint))
),
outside AS (  -- the messages that do not wait in the line; without a join, which could be a loop
    SELECT group_key, id, bool_or(in_flight) AS in_flight, bool_or(is_head) AND bool_or(late) AS late
    FROM (SELECT group_key, id, {places/in_flight} AS in_flight, {places/delayed} AS late,
                 false AS is_head
          FROM deferred WHERE group_key IS NOT NULL
          UNION ALL
          SELECT group_key, head, false, false, true FROM slots WHERE head IS NOT NULL) o
    GROUP BY group_key, id
),
known AS (
    SELECT f.*, f.late AND f.number > 1 AND q.group_rate IS NULL
                AND coalesce(f."limit", q.group_limit, 1) = 1 AS blocked
    FROM (
        SELECT group_key, sum(number) AS number, sum(outside) AS outside,
               sum(in_flight) AS in_flight, bool_or(late) AS late, max("limit") AS "limit",
               bool_or(paused) AS paused, bool_or(own) AS own
        FROM (SELECT group_key, number, 0 AS outside, 0 AS in_flight, false AS late, NULL::integer AS "limit",
                     false AS paused, false AS own
              FROM waiting
              UNION ALL
              SELECT group_key, count(*), count(*)::int, (count(*) FILTER (WHERE in_flight))::int, bool_or(late),
                     NULL, false, false
              FROM outside GROUP BY group_key
              UNION ALL
              SELECT group_key, 0, 0, 0, false, "limit", paused, true FROM own) e
        GROUP BY group_key) f
    CROSS JOIN (SELECT group_rate, group_limit FROM pgqueue_queue WHERE id = {queue_id}) q
),
page AS MATERIALIZED (
    SELECT * FROM known WHERE {only}
    ORDER BY NOT (paused OR blocked), number DESC, group_key
    LIMIT (SELECT %(most)s::bigint) OFFSET (SELECT %(skip)s::bigint)
)
SELECT (SELECT count(*) FROM known WHERE {only}),
       (SELECT whole FROM share),
       (SELECT count(*) FROM deferred) < %(look)s::bigint
       AND (SELECT count(*) FROM slots) < %(look)s::bigint
       AND (SELECT count(*) FROM own WHERE paused) < %(look)s::bigint
       AND (SELECT count(*) FROM own WHERE NOT paused) < %(look)s::bigint,
       EXISTS (SELECT FROM own WHERE "limit" IS NOT NULL),
       EXISTS (SELECT FROM own WHERE rate IS NOT NULL),
       p.group_key,
       CASE WHEN (SELECT whole FROM share) THEN p.number
            WHEN c.waiting < {enough} THEN p.outside + c.waiting
            ELSE greatest(p.number, p.outside + c.waiting) END::bigint,
       (SELECT whole FROM share) OR c.waiting < {enough},
       p.in_flight::bigint, p.blocked, p.paused, s."limit", s.rate,
       s.burst, h.head, h.priority, w.id, w.enqueued_at
FROM (SELECT 1) one
LEFT JOIN page p ON true
LEFT JOIN LATERAL (SELECT "limit", rate, burst FROM pgqueue_group_setting s
                   WHERE s.queue_id = {queue_id} AND s.group_key = p.group_key OFFSET 0) s ON true
LEFT JOIN LATERAL (SELECT head, priority FROM pgqueue_group h
                   WHERE h.queue_id = {queue_id} AND h.group_key = p.group_key AND head IS NOT NULL
                   ORDER BY slot LIMIT 1) h ON true
LEFT JOIN LATERAL (SELECT id, enqueued_at FROM pgqueue_waiting w
                   WHERE w.queue_id = {queue_id} AND w.group_key = p.group_key
                   ORDER BY id LIMIT 1) w ON true
LEFT JOIN LATERAL (SELECT count(*) AS waiting FROM (
                       SELECT FROM pgqueue_waiting w
                       WHERE w.queue_id = {queue_id} AND w.group_key = p.group_key
                         AND NOT (SELECT whole FROM share)
                       ORDER BY id LIMIT (SELECT {enough})) w) c ON true
ORDER BY NOT (p.paused OR p.blocked), p.number DESC, p.group_key

-- {groups/line}: a group and its messages, a column each: the ids of those that have left the line
-- (heads of slots, and delayed messages without one), in order; the first ids of the line after
-- %(after)s; how many wait in the line, up to a limit; how many are in flight; whether all messages
-- outside of the line were searched; the first head, its priority, whether it is delayed, and its
-- last error; the first message of the line, and when it was sent.
WITH searched AS MATERIALIZED (
    SELECT id, vt, state, group_key FROM pgqueue_deferred WHERE queue_id = {queue_id}
    ORDER BY vt LIMIT (SELECT %(look)s::bigint)
),
deferred AS MATERIALIZED (SELECT id, vt, state FROM searched WHERE group_key = %(group)s),
slots AS MATERIALIZED (
    SELECT slot, head, priority, followers FROM pgqueue_group
    WHERE queue_id = {queue_id} AND group_key = %(group)s
    ORDER BY slot LIMIT (SELECT {reasons/slots})
),
head AS MATERIALIZED (
    SELECT h.head, h.priority, d.error, {places/delayed} AS late
    FROM (SELECT * FROM slots WHERE head IS NOT NULL ORDER BY slot LIMIT 1) h
    LEFT JOIN LATERAL (SELECT error, vt, state FROM pgqueue_deferred d
                       WHERE d.id = h.head AND d.queue_id + 0 = {queue_id} LIMIT 1) d ON true
),
first AS MATERIALIZED (
    SELECT id, enqueued_at FROM pgqueue_waiting
    WHERE queue_id = {queue_id} AND group_key = %(group)s ORDER BY id LIMIT 1
)
SELECT ARRAY(SELECT id FROM deferred
             UNION SELECT head FROM slots WHERE head IS NOT NULL
             UNION SELECT d.id FROM slots s CROSS JOIN LATERAL (
                 SELECT id FROM pgqueue_deferred d
                 WHERE d.id = ANY(s.followers) AND d.queue_id + 0 = {queue_id} OFFSET 0) d
             ORDER BY 1),
       ARRAY(SELECT id FROM pgqueue_waiting
             WHERE queue_id = {queue_id} AND group_key = %(group)s AND id > %(after)s
             ORDER BY id LIMIT (SELECT %(most)s::bigint)),
       (SELECT count(*) FROM (
            SELECT FROM pgqueue_waiting WHERE queue_id = {queue_id} AND group_key = %(group)s
            ORDER BY id LIMIT (SELECT %(count)s::bigint)) w),
       (SELECT count(*) FROM deferred WHERE {places/in_flight}),
       (SELECT count(*) FROM searched) < %(look)s::bigint,
       h.head, h.priority, h.late IS TRUE, h.error, f.id, f.enqueued_at
FROM (SELECT 1) one LEFT JOIN head h ON true LEFT JOIN first f ON true

-- {groups/aggregate}: an aggregate of up to %(most)s messages of a group; no row if there are none
SELECT %(queue)s::int AS queue_id, {what}
FROM (SELECT m.id FROM (
          SELECT id, enqueued_at FROM pgqueue_waiting
          WHERE queue_id = %(queue)s AND group_key = %(group)s
          UNION ALL
          SELECT id, enqueued_at FROM pgqueue_deferred
          WHERE queue_id = %(queue)s AND group_key = %(group)s
          UNION ALL
          SELECT r.id, r.enqueued_at FROM pgqueue_group h CROSS JOIN LATERAL (
              SELECT r.id, r.enqueued_at FROM pgqueue_ready r
              WHERE r.queue_id = h.queue_id AND -r.priority = -h.priority AND r.turn = h.turn
                AND r.id = h.head OFFSET 0) r
          WHERE h.queue_id = %(queue)s AND h.group_key = %(group)s) m
      WHERE m.enqueued_at <= coalesce(%(asked_at)s::timestamptz, m.enqueued_at)
      LIMIT (SELECT %(most)s::bigint)) m
HAVING count(*) > 0
