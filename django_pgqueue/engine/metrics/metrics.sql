-- The metrics of one queue. Counts are exact up to a limit; above it the caller estimates them from
-- the server's statistics.
WITH RECURSIVE {metrics/level},
ready_age AS (
    SELECT min(o.enqueued_at) AS oldest, max(n.enqueued_at) AS newest
    FROM level
    CROSS JOIN LATERAL (SELECT enqueued_at FROM pgqueue_ready r
        WHERE r.queue_id = {of} AND -r.priority = level.rank
        ORDER BY r.turn LIMIT 1) o
    CROSS JOIN LATERAL (SELECT enqueued_at FROM pgqueue_ready r
        WHERE r.queue_id = {of} AND -r.priority = level.rank
        ORDER BY r.turn DESC LIMIT 1) n
)
SELECT r.counted AS ready,
       w.counted AS waiting, f.ready AS first_ready, f.delayed AS first_delayed,
       d.counted AS deferred, l.counted AS leased, d.due + l.due,
       d.in_flight + l.counted - l.due, d.delayed,
       extract(epoch FROM statement_timestamp() - least(a.oldest, r.oldest, d.oldest, l.oldest, w.oldest))::float AS oldest_age,
       extract(epoch FROM statement_timestamp() - greatest(a.newest, r.newest, d.newest, l.newest, w.newest))::float AS newest_age,
       (SELECT count(*) FROM (SELECT FROM {archive} WHERE queue_id = {of}
                              LIMIT %(limit)s) a) AS archived,
       (SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)::bigint
        FROM pg_partition_tree('{message}')) AS live_estimate,
       (SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)::bigint
        FROM pg_partition_tree('{archive}')) AS archived_estimate,
       (SELECT coalesce(sum(pg_stat_get_tuples_inserted(relid)), 0)::bigint
        FROM pg_partition_tree('{message}')) AS inserted,
       statement_timestamp() AS scraped_at, f.complete,
       d.loose_delayed, d.loose_retries, b.found
FROM ready_age a
JOIN pgqueue_queue q ON q.id = {of}
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT enqueued_at FROM pgqueue_ready WHERE queue_id = {of}
          ORDER BY -priority, turn LIMIT (SELECT %(limit)s::bigint)) r) r
{metrics/counts}
