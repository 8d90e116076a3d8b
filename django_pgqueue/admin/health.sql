-- {health/holders}: the oldest transactions, prepared transactions and replication slots. They keep dead
-- rows from being removed. The text of their statements is left out.
SELECT 'session' AS kind, pid::text AS number, coalesce(usename, '') AS who,
       coalesce(application_name, '') AS application, coalesce(state, '') AS state,
       extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND datname = current_database()
UNION ALL
SELECT 'prepared', '', owner, gid, 'prepared',
       extract(epoch FROM clock_timestamp() - prepared)::float
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'slot', '', slot_name, coalesce(plugin, slot_type),
       CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL
FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
ORDER BY seconds DESC NULLS LAST
LIMIT 10

-- {health/tables}: live and dead rows of the hot tables, by PostgreSQL's statistics
SELECT s.relname, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid),
       greatest(s.last_autovacuum, s.last_vacuum), greatest(s.last_autoanalyze, s.last_analyze)
FROM pg_stat_user_tables s
WHERE s.relid = ANY(ARRAY(SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name))
ORDER BY s.n_dead_tup DESC, s.relname

-- {health/server}: the server's version and usage, and whether most of its connections are in use
SELECT current_setting('server_version'), pg_notification_queue_usage(),
       s.number, s.most, pg_database_size(current_database()), s.number > 0.9 * s.most
FROM (SELECT count(*) AS number, current_setting('max_connections')::int AS most
      FROM pg_stat_activity WHERE backend_type = 'client backend') s
