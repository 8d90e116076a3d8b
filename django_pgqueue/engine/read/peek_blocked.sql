-- The messages that are not delivered now, with their reasons: first those that only the queue holds
-- back, in the order of reads; then those that their groups hold back, the first of each group
-- first; then the delayed ones, by time. P1, P3, P6.
--
-- The windows have ROWS, since without it PostgreSQL 15 reads all messages with the same vt before
-- it numbers them.
WITH RECURSIVE whole_queue AS MATERIALIZED (
    SELECT k.queue_id, o.* FROM (SELECT {queue_id} AS queue_id) k CROSS JOIN LATERAL ({reasons/whole}) o
),
-- The distinct groups, each found by one index probe.
step AS (
    (SELECT {queue_id} AS queue_id, group_key FROM pgqueue_waiting WHERE queue_id = {queue_id}
     ORDER BY group_key, id LIMIT 1)
    UNION ALL
    SELECT queue_id, (SELECT w.group_key FROM pgqueue_waiting w
                      WHERE w.queue_id = {queue_id} AND w.group_key > step.group_key
                      ORDER BY w.group_key, w.id LIMIT 1)
    FROM step WHERE group_key IS NOT NULL
),
-- Skips groups all of whose messages may start. Skips at most as many as one read gives a head.
blocked_group AS MATERIALIZED (
    SELECT k.group_key, g.slots
    FROM (SELECT * FROM step WHERE group_key IS NOT NULL
          LIMIT (SELECT %(qty)s::bigint + {places/rechecks})) k
    CROSS JOIN whole_queue q
    CROSS JOIN LATERAL ({reasons/group}) g
    CROSS JOIN LATERAL (
        SELECT FROM (SELECT false AS in_flight, {places/not_due} IS TRUE AS not_due, false AS at_rate,
                            read_ct, true AS needs_slot, ahead
                     FROM (SELECT *, row_number() OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - 1 AS ahead
                           FROM pgqueue_waiting
                           WHERE queue_id = {queue_id} AND group_key = k.group_key ORDER BY id) d
                     WHERE {read/contains}
                     ORDER BY d.id LIMIT (SELECT g.slots + %(qty)s::bigint)) s
        WHERE {reasons/reason} IS NOT NULL LIMIT 1) found
    LIMIT (SELECT %(qty)s::bigint)
),
asked AS MATERIALIZED (
    -- Due messages that the queue holds back, or that lack a slot of their group.
    SELECT * FROM (
        SELECT 1 AS rank, row_number() OVER (ORDER BY d.vt ROWS UNBOUNDED PRECEDING) AS number,
               {queue_id} AS queue_id, d.id, d.enqueued_at, d.priority, d.group_key, d.read_ct,
               d.attempts, d.first_read_at, d.vt, false AS in_flight, false AS not_due, false AS at_rate,
               d.group_key IS NOT NULL AND d.slot_at IS NULL AS needs_slot, 0::bigint AS ahead
        FROM (SELECT d.*, {reasons/slot_at} AS slot_at FROM pgqueue_deferred d
              WHERE d.queue_id = {queue_id} AND {places/due} ORDER BY d.vt OFFSET 0) d
        WHERE ((SELECT held FROM whole_queue) IS NOT NULL
               OR d.group_key IS NOT NULL AND d.slot_at IS NULL)
          AND {read/contains}
        LIMIT (SELECT %(qty)s::bigint)) due
    UNION ALL
    SELECT * FROM (
        SELECT 2, row_number() OVER (ROWS UNBOUNDED PRECEDING), {queue_id}, d.id, d.enqueued_at,
               l.priority, NULL::text, 1, 0, l.read_at, l.vt, false, false, false, false, 0
        FROM (SELECT * FROM pgqueue_lease l WHERE l.queue_id = {queue_id} AND {places/due}
              ORDER BY l.vt OFFSET 0) l
        CROSS JOIN LATERAL unnest(l.ids, l.enqueued_ats) AS d (id, enqueued_at)
        WHERE (SELECT held FROM whole_queue) IS NOT NULL AND {read/contains}
        LIMIT (SELECT %(qty)s::bigint)) ended
    UNION ALL
    SELECT * FROM (
        SELECT 3, row_number() OVER (ORDER BY -d.priority, d.turn), {queue_id}, d.id, d.enqueued_at,
               d.priority, d.group_key, 0, 0, NULL::timestamptz, d.enqueued_at, false, false, false, false, 0
        FROM pgqueue_ready d
        WHERE d.queue_id = {queue_id} AND (SELECT held FROM whole_queue) IS NOT NULL
          AND {read/contains}
        LIMIT (SELECT %(qty)s::bigint)) fresh
    UNION ALL
    SELECT 4, w.number, {queue_id}, w.id, w.enqueued_at, w.priority, w.group_key, w.read_ct,
           w.attempts, w.first_read_at, coalesce(w.vt, w.enqueued_at), false, w.not_due, false, true,
           w.ahead
    FROM blocked_group k
    CROSS JOIN LATERAL (
        SELECT d.*, {places/not_due} IS TRUE AS not_due, row_number() OVER (ORDER BY d.id) AS number
        FROM (SELECT *, row_number() OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - 1 AS ahead
              FROM pgqueue_waiting
              WHERE queue_id = {queue_id} AND group_key = k.group_key ORDER BY id) d
        WHERE {read/contains}
        ORDER BY d.id LIMIT (SELECT k.slots + %(qty)s::bigint)) w
    UNION ALL
    SELECT * FROM (
        SELECT 5, row_number() OVER (ORDER BY d.vt ROWS UNBOUNDED PRECEDING), {queue_id}, d.id,
               d.enqueued_at, d.priority, d.group_key, d.read_ct, d.attempts, d.first_read_at, d.vt, false, true,
               d.vt = d.slot_at, d.group_key IS NOT NULL AND d.slot_at IS NULL, 0
        FROM (SELECT d.*, {reasons/slot_at} AS slot_at FROM pgqueue_deferred d
              WHERE d.queue_id = {queue_id} AND {places/delayed} ORDER BY d.vt OFFSET 0) d
        WHERE {read/contains}
        LIMIT (SELECT %(qty)s::bigint)) delayed
),
{reasons/facts},
found AS (
    SELECT *, row_number() OVER (ORDER BY rank, number, id) AS place
    FROM (SELECT s.*, {reasons/reason} AS reason, {reasons/until} AS until FROM {reasons/from}) r
    WHERE reason IS NOT NULL
    ORDER BY rank, number, id
    LIMIT (SELECT %(qty)s::bigint)
)
SELECT NULL::text, t.id, t.read_ct, 0, t.enqueued_at, t.priority, t.group_key,
       t.attempts, (extract(epoch FROM t.vt) * 1000000::numeric)::bigint,
       (extract(epoch FROM t.first_read_at) * 1000000::numeric)::bigint{read_columns},
       t.reason, t.until
FROM found t {read/bodies}
ORDER BY t.place
