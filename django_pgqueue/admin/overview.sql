-- A row per queue: the numbers of failed messages and dead letters; the seconds that its oldest readable
-- message has waited; its newest error, the types of its recent errors, and its attempts by minute, if the
-- queue is failing; who paused it, and when, if it is paused. Every row also has the age of the database's
-- oldest transaction, in seconds.
WITH failures AS MATERIALIZED ({counts}), oldest AS MATERIALIZED ({oldest}),
failing AS MATERIALIZED (
    SELECT q.id, a.error_class, a.message, m.minutes, m.attempts, m.failed, ARRAY(
        SELECT DISTINCT error_class
        FROM (SELECT error_class FROM pgqueue_attempt
              WHERE queue_id = q.id AND at > statement_timestamp() - interval '1 hour'
              ORDER BY at DESC, id DESC LIMIT 100) n) AS error_classes
    FROM unnest(%(failing)s::int[]) AS q (id)
    LEFT JOIN LATERAL (SELECT error_class, left(message, 300) AS message FROM pgqueue_attempt
                       WHERE queue_id = q.id ORDER BY at DESC, id DESC LIMIT 1) a ON true
    CROSS JOIN LATERAL ({minutes}) m
),
paused AS MATERIALIZED (  -- the last entry that paused the queue, and no group or schedule of it
    SELECT q.id, e.who, e.at
    FROM unnest(%(paused)s::int[]) AS q (id)
    CROSS JOIN LATERAL (SELECT who, at FROM pgqueue_audit
                        WHERE queue_id = q.id AND NOT arguments ?| '{{group,schedule}}'
                          AND CASE operation WHEN 'pause' THEN true
                                             WHEN 'alter' THEN arguments #>> '{{paused,1}}' = 'true'
                                             WHEN 'create' THEN arguments ->> 'paused' = 'true' END
                        ORDER BY id DESC LIMIT 1) e
)
SELECT q.id, coalesce(f.failed, 0), coalesce(f.dead, 0), o.seconds::float8, a.error_class, a.message,
       a.error_classes, a.minutes, a.attempts, a.failed, p.who, p.at,
       (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND datname = current_database()
          AND backend_type = 'client backend'),
       {batches}::text
FROM unnest(%(queues)s::int[]) AS q (id)
LEFT JOIN failures f ON f.source_id = q.id
LEFT JOIN oldest o ON o.id = q.id
LEFT JOIN failing a ON a.id = q.id
LEFT JOIN paused p ON p.id = q.id
