-- Id and tick of a schedule's last messages, found among the newest %(look)s messages of its queue.
SELECT id, headers #>> '{{x-schedule,at}}'
FROM (SELECT id, headers FROM pgqueue_message WHERE queue_id = %(queue)s
      ORDER BY id DESC LIMIT (SELECT %(look)s::bigint)) m
WHERE CASE WHEN pg_column_size(headers) <= 8192
           THEN headers #>> '{{x-schedule,name}}' = %(name)s ELSE false END
ORDER BY id DESC LIMIT %(most)s
