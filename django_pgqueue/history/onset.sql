-- {onset/minutes}: the attempts of queues in each minute of the last hour, and those that failed.
SELECT queue_id, bucket,
       (sum({succeeded}) + sum({failed}) + sum(dead_lettered) + sum(retried))::bigint AS attempts,
       (sum({failed}) + sum(dead_lettered) + sum(retried))::bigint
FROM pgqueue_history
WHERE seconds = 60 AND bucket >= date_trunc('minute', statement_timestamp()) - interval '1 hour'
  AND queue_id = ANY(%(queues)s)
GROUP BY queue_id, bucket
HAVING sum({succeeded}) + sum({failed}) + sum(dead_lettered) + sum(retried) > 0
ORDER BY queue_id, bucket

-- {onset/failures}: the times of failed attempts, the oldest first, between two times for each queue
SELECT q.id, array_agg(a.at ORDER BY a.at)
FROM unnest(%(queues)s::int[], %(first)s::timestamptz[], %(until)s::timestamptz[]) AS q (id, first, until)
CROSS JOIN LATERAL (SELECT at FROM pgqueue_attempt WHERE queue_id = q.id AND at >= q.first AND at < q.until
                    ORDER BY at, id LIMIT (SELECT %(most)s::bigint)) a
GROUP BY q.id
