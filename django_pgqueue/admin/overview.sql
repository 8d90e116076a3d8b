-- A row per queue: the numbers of failed messages and dead letters, the seconds that its oldest readable
-- message has waited, and its newest error if the queue is failing. Every row also has the age of the
-- database's oldest transaction, in seconds.
WITH failures AS MATERIALIZED ({counts}), oldest AS MATERIALIZED ({oldest})
SELECT q.id, coalesce(f.failed, 0), coalesce(f.dead, 0), o.seconds::float8, a.error_class, a.message,
       (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND datname = current_database()
          AND backend_type = 'client backend')
FROM unnest(%(queues)s::int[]) AS q (id)
LEFT JOIN failures f ON f.source_id = q.id
LEFT JOIN oldest o ON o.id = q.id
LEFT JOIN LATERAL (SELECT error_class, left(message, 300) AS message FROM pgqueue_attempt
                   WHERE queue_id = q.id ORDER BY at DESC, id DESC LIMIT 1) a
    ON q.id = ANY(%(failing)s::int[])
