-- Failures that need attention: failed messages that were not sent again, and dead letters that are still
-- in their dead-letter queue. All columns but the errors are read from indexes.

-- {failures/open}: the failures in a window, optionally of one kind or one source queue
SELECT id, queue_id, queue_id AS source_id, archived_at AS at, failure AS kind, false AS dead
FROM pgqueue_archive
WHERE state = 'FAILED' AND failure IS NOT NULL AND queue_id = {of_queues}
  AND archived_at >= statement_timestamp() - %(window)s::interval
  AND failure = coalesce(%(kind)s::bigint, failure)
  AND queue_id = coalesce(%(source)s::int, queue_id)
UNION ALL
SELECT id, queue_id, coalesce(source_id, queue_id), enqueued_at, coalesce(failure, 0), true
FROM pgqueue_message m
WHERE headers ? 'x-dead-letter' AND queue_id = {of_dead}
  AND enqueued_at >= statement_timestamp() - %(window)s::interval
  AND coalesce(failure, 0) = coalesce(%(kind)s::bigint, failure, 0)
  AND coalesce(%(source)s::int, queue_id) IN (queue_id, source_id)
  -- The list of queues lets the planner skip the partitions of other queues.
  AND NOT EXISTS (SELECT FROM pgqueue_archive a
                  WHERE a.queue_id = {of_dead} AND a.queue_id = m.queue_id
                    AND a.id = m.id AND a.enqueued_at = m.enqueued_at)

-- {failures/groups}: the largest groups, each with its counts per time span and an example message
WITH counted AS MATERIALIZED (
    SELECT kind, source_id, queue_id, dead, date_bin(%(span)s::interval, at, timestamptz 'epoch') AS span,
           count(*) AS number, min(at) AS first, max(at) AS last, max(id) AS id
    FROM ({open}) f GROUP BY 1, 2, 3, 4, 5),
groups AS (
    SELECT kind, sum(number)::bigint AS number,
           coalesce(sum(number) FILTER (WHERE dead), 0)::bigint AS dead,
           min(first) AS first, max(last) AS last, array_agg(DISTINCT source_id) AS sources,
           array_agg(ARRAY[extract(epoch FROM span)::bigint, number]) AS spans,
           max(ARRAY[id, queue_id]) AS example, count(*) OVER () AS every
    FROM counted GROUP BY kind ORDER BY number DESC, kind LIMIT %(most)s)
SELECT g.kind, g.number, g.dead, g.first, g.last, g.sources, g.spans, g.example, g.every,
       {errors/line}, {errors/frame}
FROM groups g CROSS JOIN LATERAL ({error}) e
ORDER BY g.number DESC, g.kind

-- {failures/error}: the error of the example message, g.example (its id and its queue's id)
SELECT coalesce(
    (SELECT a.error FROM pgqueue_archive a
     WHERE a.id = g.example[1] AND a.queue_id = g.example[2] AND a.state = 'FAILED' LIMIT 1),
    (SELECT m.headers #>> '{{x-dead-letter,error}}' FROM pgqueue_message m
     WHERE m.id = g.example[1] AND m.queue_id = g.example[2] LIMIT 1), '') AS text OFFSET 0

-- {failures/examples}: the newest messages of a group, with their errors
SELECT g.id, g.queue_id, g.at, e.text, {errors/line}
FROM (SELECT id, queue_id, at, ARRAY[id, queue_id] AS example FROM ({open}) f
      ORDER BY at DESC, id DESC LIMIT %(most)s) g
CROSS JOIN LATERAL ({error}) e
ORDER BY g.at DESC, g.id DESC

-- {failures/counts}: the numbers of failed messages and of dead letters, by source queue
SELECT source_id, count(*) FILTER (WHERE NOT dead) AS failed, count(*) FILTER (WHERE dead) AS dead
FROM ({open}) f GROUP BY 1

-- {failures/members}: an aggregate of a group's failed messages, or of its dead letters, by queue
SELECT queue_id, {what} FROM ({open}) f
WHERE dead = %(is_dead)s AND at <= coalesce(%(asked_at)s::timestamptz, at)
GROUP BY queue_id

-- {failures/sent_again}: the number of failed messages in a window that were sent again
SELECT count(*) FROM pgqueue_archive
WHERE state = 'FAILED' AND failure IS NULL AND queue_id = {of_queues}
  AND archived_at >= statement_timestamp() - %(window)s::interval
