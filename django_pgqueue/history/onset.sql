-- {onset/minutes}: the minutes of the last hour in which attempts of queue q ended, as three arrays:
-- when a minute began, its attempts, and those that failed. Part of other statements.
SELECT array_agg(bucket ORDER BY bucket) AS minutes, array_agg(attempts ORDER BY bucket) AS attempts,
       array_agg(failed ORDER BY bucket) AS failed
FROM (SELECT bucket, (sum({succeeded}) + sum({failed}) + sum(dead_lettered) + sum(retried))::bigint AS attempts,
             (sum({failed}) + sum(dead_lettered) + sum(retried))::bigint AS failed
      FROM pgqueue_history
      WHERE seconds = 60 AND bucket >= date_trunc('minute', statement_timestamp()) - interval '1 hour'
        AND queue_id = q.id
      GROUP BY bucket) m
WHERE attempts > 0

-- {onset/failures}: the times of failed attempts, the oldest first, between two times for each queue
SELECT q.id, array_agg(a.at ORDER BY a.at)
FROM unnest(%(queues)s::int[], %(first)s::timestamptz[], %(until)s::timestamptz[]) AS q (id, first, until)
CROSS JOIN LATERAL (SELECT at FROM pgqueue_attempt WHERE queue_id = q.id AND at >= q.first AND at < q.until
                    ORDER BY at, id LIMIT (SELECT %(most)s::bigint)) a
GROUP BY q.id
