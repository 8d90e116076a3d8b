-- Details of a queue's page, a column each: the newest failed attempts; the disk space of the
-- messages; the disk space of the archive; the time of the last removal by retention; the number of
-- time partitions; whether one of the newest messages runs a task.
SELECT (SELECT coalesce(jsonb_agg(a), '[]')
        FROM (SELECT at, message_id, attempt, error_class, left(message, 300) AS message
              FROM pgqueue_attempt WHERE queue_id = {queue_id}
              ORDER BY at DESC, id DESC LIMIT %(most)s) a)::text,
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{message}')),
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{archive}')),
       (SELECT purged_at FROM pgqueue_purge_mark WHERE queue_id = {queue_id}),
       (SELECT count(*) FROM pg_partition_tree('{message}') t JOIN pg_class c ON c.oid = t.relid
        WHERE t.level = 1 AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'),
       EXISTS (SELECT FROM (SELECT CASE WHEN pg_column_size(body) <= %(small)s THEN body END AS body
                            FROM {message} ORDER BY id DESC LIMIT 20) m
               WHERE body ?& ARRAY['task', 'args', 'kwargs'])
