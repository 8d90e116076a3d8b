-- The tasks among the newest messages of a queue that ended: the import path of each, the final state, and the
-- run time in seconds if it was successful. The path is NULL if the body is too large to be read.
SELECT left(m.task, %(length)s), a.state,
       CASE WHEN jsonb_typeof(a.result -> 'seconds') = 'number' THEN (a.result ->> 'seconds')::float8 END
FROM (SELECT id, enqueued_at, state, result FROM {archive}
      ORDER BY id DESC LIMIT (SELECT %(look)s::bigint)) a
-- One look-up by index for each of them: a join would read the whole table.
CROSS JOIN LATERAL (
    SELECT CASE WHEN pg_column_size(body) > %(small)s THEN true
                ELSE body ?& ARRAY['task', 'args', 'kwargs'] AND jsonb_typeof(body -> 'task') = 'string'
           END AS is_task,
           CASE WHEN pg_column_size(body) <= %(small)s THEN body ->> 'task' END AS task
    FROM {message} WHERE id = a.id AND enqueued_at = a.enqueued_at LIMIT 1) m
WHERE m.is_task
