-- Which lakes retention waits for, and the state of every lake's exports.

-- {lakes/running}: whether a session exports to the lake at {path} at this moment. The session
-- holds the lake's lock until it ends (pyspark_pgqueue/lake/runs.py).
EXISTS (SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid = hashtext('pgqueue export')::oid AND objid = hashtext({path})::oid)

-- {lakes/takes}: whether a lake exports the queue named {queue}
(queues = '[]' OR EXISTS (SELECT FROM jsonb_array_elements_text(queues) AS chosen (name)
                          WHERE lower(chosen.name) = lower({queue})))

-- {lakes/holding}: the lakes that a queue's retention waits for. Messages archived by transactions
-- below exported_below are in the lake; is_ours says whether these are transactions of this server
-- (false after a restore on another server). It does not wait for a lake whose first export failed.
SELECT path, exported_below,
       system = (SELECT system_identifier::text FROM pg_control_system()) AS is_ours
FROM pgqueue_lake l
WHERE holds_retention AND (exported_at IS NOT NULL OR {running})
  AND {takes}
ORDER BY path

-- {lakes/health}: the state of each lake's exports. Counts stop at %(most)s.
SELECT l.path, ARRAY(SELECT jsonb_array_elements_text(l.queues)), l.holds_retention, l.exported_at,
       {running} AS running,
       extract(epoch FROM statement_timestamp() - coalesce(l.exported_at, l.created_at))::float8
           AS seconds,
       (SELECT count(*) FROM (
            SELECT FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id
            WHERE a.archive_xid >= l.exported_below AND {takes}
            LIMIT %(most)s) behind) AS behind,
       -- Messages archived before exported_at are exported, so mostly there is nothing to count.
       CASE WHEN l.holds_retention AND EXISTS (
           SELECT FROM pgqueue_queue WHERE retention < statement_timestamp() - l.exported_at)
       THEN (SELECT count(*) FROM (
           SELECT FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id
           WHERE a.archive_xid >= l.exported_below AND {takes}
             AND a.archived_at < statement_timestamp() - q.retention
           LIMIT %(most)s) held)
       ELSE 0 END AS held,
       failed.failures, {errors/line} AS error,
       coalesce((SELECT (r.manifest ->> 'misfits')::float8 / nullif((r.manifest ->> 'typed')::float8, 0)
                 FROM pgqueue_export_run r
                 WHERE r.lake_id = l.id AND r.kind = 'EXPORT' AND r.state = 'DONE'
                 ORDER BY r.id DESC LIMIT 1), 0) AS misfits
FROM pgqueue_lake l CROSS JOIN LATERAL (
    SELECT count(*) AS failures, (array_agg(r.error ORDER BY r.id DESC))[1] AS error
    FROM pgqueue_export_run r
    WHERE r.lake_id = l.id AND r.state <> 'DONE'
      AND r.id > coalesce((SELECT max(d.id) FROM pgqueue_export_run d
                           WHERE d.lake_id = l.id AND d.state = 'DONE'), 0)
      AND (r.state = 'FAILED' OR NOT {running})) failed
CROSS JOIN LATERAL (SELECT coalesce(failed.error, '') AS text) e
ORDER BY l.path
