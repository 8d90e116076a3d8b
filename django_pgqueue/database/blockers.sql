-- Sessions that keep others waiting for a lock, or that hold a lock on our tables that nobody can share:
-- those that do not themselves wait, since more than a second, the ones with most waiters first.
WITH waits AS (
    SELECT b.pid, count(*) AS waiting
    FROM pg_stat_activity a CROSS JOIN LATERAL unnest(pg_blocking_pids(a.pid)) AS b (pid)
    WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
      AND a.query_start < clock_timestamp() - interval '1 s'
    GROUP BY b.pid
),
held AS (
    SELECT l.pid, array_agg(DISTINCT c.relname::text ORDER BY c.relname::text) AS tables
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND c.relname ~ '^pgqueue_' AND c.relkind IN ('r', 'p')
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    GROUP BY l.pid
)
SELECT a.pid, coalesce(a.usename, ''), a.application_name, coalesce(a.state, ''),
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.query_start))::float8,
       a.query, coalesce(w.waiting, 0), coalesce(h.tables, '{}')
FROM pg_stat_activity a LEFT JOIN waits w ON w.pid = a.pid LEFT JOIN held h ON h.pid = a.pid
WHERE a.pid <> pg_backend_pid() AND a.wait_event_type IS DISTINCT FROM 'Lock'
  AND (w.pid IS NOT NULL OR h.pid IS NOT NULL AND a.xact_start < clock_timestamp() - interval '1 s')
ORDER BY 7 DESC, 5 DESC LIMIT 10
