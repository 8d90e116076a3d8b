-- The messages of queue q in a place, such as ready: one page, in index order. places.py combines
-- these parts, and has the values of {after_id}, {after_turn}, {after_vt} and {after_group}.

-- {lists/ready}
SELECT id, ARRAY[-priority, turn] AS key, enqueued_at, group_key, 0 AS attempts
FROM pgqueue_ready
WHERE queue_id = q.id AND (-priority, turn) > (({after_turn})[1], ({after_turn})[2])
ORDER BY -priority, turn

-- {lists/first_ready}: ready messages, each the first of a group without a head
SELECT f.id, key, enqueued_at, group_key, attempts
FROM ({places/headless}) f
CROSS JOIN LATERAL (SELECT ARRAY[-priority, 9223372036854775807] AS key) l  -- after all turns
WHERE place = 'ready' AND (key, f.id) > ({after_turn}, {after_id})
ORDER BY key, f.id

-- {lists/first_delayed}: delayed messages, each the first of a group without a head
SELECT id, vt AS key, enqueued_at, group_key, attempts FROM ({places/headless}) f
WHERE place = 'delayed' AND (vt, id) > ({after_vt}, {after_id})
ORDER BY vt, id

-- {lists/deferred}
SELECT id, vt AS key, enqueued_at, group_key, attempts, vt, state FROM pgqueue_deferred
WHERE queue_id = q.id AND (vt, id) > ({after_vt}, {after_id}) AND {when}
ORDER BY vt, id

-- {lists/leased}
SELECT i.id, l.vt AS key, i.enqueued_at, NULL::text AS group_key, 0 AS attempts
FROM (SELECT vt, ids, enqueued_ats FROM pgqueue_lease
      WHERE queue_id = q.id AND vt >= {after_vt} AND {when}
      ORDER BY vt LIMIT (SELECT %(look)s::bigint)) l
CROSS JOIN LATERAL unnest(l.ids, l.enqueued_ats) AS i (id, enqueued_at)
WHERE (l.vt, i.id) > ({after_vt}, {after_id})
ORDER BY l.vt, i.id

-- {lists/waiting}
SELECT id, group_key AS key, enqueued_at, group_key, attempts FROM pgqueue_waiting
WHERE queue_id = q.id AND (group_key, id) > ({after_group}, {after_id})
  AND (%(group)s::text IS NULL OR group_key = %(group)s::text)
  AND id <> ALL(ARRAY(SELECT id FROM ({places/headless}) f))
ORDER BY group_key, id

-- {lists/rows}: tests the first {most} of {rows}. Returns the rows that meet {conditions} (matches
-- is true) and, if {most} rows were tested, the last of them (ends is true). The limit is hidden
-- from the planner: P1.
(SELECT f.id, f.key, f.matches, f.ends
 FROM (SELECT s.*, {conditions} AS matches
       FROM (SELECT r.*, row_number() OVER () = (SELECT {most}::bigint) AS ends
             FROM ({rows} LIMIT (SELECT {most}::bigint)) r) s OFFSET 0) f
 WHERE f.matches OR f.ends ORDER BY f.key, f.id LIMIT (SELECT %(limit)s::bigint))

-- {lists/of_queues}: the messages of all chosen queues.
SELECT q.id AS queue_id, p.key, p.id, p.matches, p.ends
FROM pgqueue_queue q CROSS JOIN LATERAL ({found}) p
WHERE (%(queues)s::int[] IS NULL OR q.id = ANY(%(queues)s::int[]))
  AND q.id >= %(after_queue)s
{order} LIMIT (SELECT %(limit)s::bigint)

-- {lists/kept}: like lists/rows, but reads {table} (all messages or the archive), and returns the
-- messages of all chosen queues in one order.
SELECT f.queue_id, f.key, f.id, f.matches, f.ends
FROM (SELECT s.*, {conditions} AS matches
      FROM (SELECT r.*, row_number() OVER () = (SELECT %(look)s::bigint) AS ends
            FROM (SELECT *, {key} AS key FROM {table} WHERE {only} ORDER BY {order}
                  LIMIT (SELECT %(look)s::bigint)) r) s OFFSET 0) f
WHERE f.matches OR f.ends ORDER BY {order} LIMIT (SELECT %(limit)s::bigint)

-- {lists/kept_count}: the estimated number of rows in the queues' partitions of {table}
SELECT coalesce(sum(pg_stat_get_live_tuples(t.relid)), 0)::bigint
FROM (SELECT to_regclass('{table}') AS root WHERE %(queues)s::int[] IS NULL
      UNION ALL SELECT to_regclass('{table}_q' || id) FROM unnest(%(queues)s::int[]) AS id) q
CROSS JOIN LATERAL pg_partition_tree(q.root) t

-- {lists/backlog}: an aggregate of up to %(most)s messages in a queue; no row if there are none
SELECT queue_id, {what}
FROM (SELECT queue_id, id FROM pgqueue_live WHERE queue_id = %(queue)s
                                    AND enqueued_at <= coalesce(%(asked_at)s::timestamptz, enqueued_at)
      LIMIT (SELECT %(most)s::bigint)) m
GROUP BY queue_id
