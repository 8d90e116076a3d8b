-- Details of a queue's page, a column each: the newest failed attempts; the largest FIFO groups
-- among a limited number of waiting messages; the number of these messages; the disk space of the
-- messages; the disk space of the archive; the time of the last removal by retention; the number of
-- time partitions.
WITH waiting AS (
    SELECT group_key FROM pgqueue_waiting WHERE queue_id = {queue_id}
    ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)),
groups AS (
    SELECT group_key, count(*) AS number FROM waiting
    GROUP BY group_key ORDER BY number DESC, group_key LIMIT %(most)s)
SELECT (SELECT coalesce(jsonb_agg(a), '[]')
        FROM (SELECT at, message_id, attempt, error_class, left(message, 300) AS message
              FROM pgqueue_attempt WHERE queue_id = {queue_id}
              ORDER BY at DESC, id DESC LIMIT %(most)s) a)::text,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(group_key, number) ORDER BY number DESC, group_key), '[]')
        FROM groups)::text,
       (SELECT count(*) FROM waiting),
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{message}')),
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('{archive}')),
       (SELECT purged_at FROM pgqueue_purge_mark WHERE queue_id = {queue_id}),
       (SELECT count(*) FROM pg_partition_tree('{message}') t JOIN pg_class c ON c.oid = t.relid
        WHERE t.level = 1 AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT')
