-- The last messages of a schedule, among the newest %(look)s of its queue: id, and the tick.
SELECT id, headers #>> '{{x-schedule,at}}'
FROM (SELECT id, headers FROM pgqueue_message WHERE queue_id = %(queue)s
      ORDER BY id DESC LIMIT (SELECT %(look)s::bigint)) m
WHERE CASE WHEN pg_column_size(headers) <= 8192
           THEN headers #>> '{{x-schedule,name}}' = %(name)s ELSE false END
ORDER BY id DESC LIMIT %(most)s
