-- One queue. Counts are exact up to a limit; beyond it the caller estimates from the server's
-- statistics. The oldest ready message of each priority is one index probe.
WITH RECURSIVE level AS (
    (SELECT -priority AS rank FROM {ready} WHERE queue_id = {queue_id} ORDER BY -priority LIMIT 1)
    UNION ALL
    SELECT (SELECT -r.priority FROM {ready} r
            WHERE r.queue_id = {queue_id} AND -r.priority > level.rank
            ORDER BY -r.priority LIMIT 1)
    FROM level WHERE level.rank IS NOT NULL
),
ready_age AS (
    SELECT min(o.enqueued_at) AS oldest, max(n.enqueued_at) AS newest
    FROM level
    CROSS JOIN LATERAL (SELECT enqueued_at FROM {ready} r
        WHERE r.queue_id = {queue_id} AND -r.priority = level.rank
        ORDER BY r.id LIMIT 1) o
    CROSS JOIN LATERAL (SELECT enqueued_at FROM {ready} r
        WHERE r.queue_id = {queue_id} AND -r.priority = level.rank
        ORDER BY r.id DESC LIMIT 1) n
)
SELECT (SELECT count(*) FROM (SELECT FROM {ready} WHERE queue_id = {queue_id}
                              ORDER BY -priority, id LIMIT (SELECT %(limit)s::bigint)) r) AS ready,
       w.counted AS waiting, b.counted AS begun, b.later AS begun_later,
       d.counted AS deferred, l.counted AS leased, d.due + l.due,
       d.in_flight + l.counted - l.due, d.delayed,
       extract(epoch FROM statement_timestamp() - least(a.oldest, d.oldest, l.oldest, w.oldest))::float AS oldest_age,
       extract(epoch FROM statement_timestamp() - greatest(a.newest, d.newest, l.newest, w.newest))::float AS newest_age,
       (SELECT count(*) FROM (SELECT FROM {archive} WHERE queue_id = {queue_id}
                              LIMIT %(limit)s) a) AS archived,
       (SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)::bigint
        FROM pg_partition_tree('{message}')) AS live_estimate,
       (SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)::bigint
        FROM pg_partition_tree('{archive}')) AS archived_estimate,
       (SELECT coalesce(sum(pg_stat_get_tuples_inserted(relid)), 0)::bigint
        FROM pg_partition_tree('{message}')) AS inserted,
       statement_timestamp() AS scraped_at
FROM ready_age a
{metrics/counts}
