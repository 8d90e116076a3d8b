-- The messages of a queue q that stand in a place, behind the one at which the page before ended,
-- in the order of an index. What {after_id} and its like stand for: places.py.

-- {lists/ready}
SELECT id, -priority AS key, enqueued_at, group_key, 0 AS attempts FROM pgqueue_ready
WHERE queue_id = q.id AND (-priority, id) > ({after_rank}, {after_id})
ORDER BY -priority, id

-- {lists/first_ready}
SELECT id, -priority AS key, enqueued_at, group_key, attempts FROM ({places/headless}) f
WHERE place = 'ready' AND (-priority, id) > ({after_rank}, {after_id})
ORDER BY -priority, id

-- {lists/first_delayed}
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

-- {lists/rows}: {rows} of a place that meet conditions; no more are read than {most}. The limit is
-- hidden from the planner: P1.
(SELECT s.id, s.key FROM ({rows} LIMIT (SELECT {most}::bigint)) s
 WHERE {conditions} ORDER BY s.key, s.id LIMIT (SELECT %(limit)s::bigint))

-- {lists/of_queues}: those of all chosen queues.
SELECT q.id AS queue_id, p.key, p.id
FROM pgqueue_queue q CROSS JOIN LATERAL ({found}) p
WHERE (%(queues)s::int[] IS NULL OR q.id = ANY(%(queues)s::int[]))
  AND q.id >= %(after_queue)s
{order} LIMIT (SELECT %(limit)s::bigint)
