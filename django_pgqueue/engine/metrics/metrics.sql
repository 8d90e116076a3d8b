-- Counts are exact up to a limit; beyond it the caller estimates from the server's statistics. In
-- the order of an index, and with a limit the planner cannot see, or it would go through the rows
-- of all other queues (P1). The oldest ready message of each priority is one index probe.
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
),
deferred AS (
    SELECT count(*) AS counted,
           count(*) FILTER (WHERE vt <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE vt > statement_timestamp() AND state = 'PROCESSING') AS in_flight,
           count(*) FILTER (WHERE vt > statement_timestamp() AND state <> 'PROCESSING') AS delayed,
           min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT vt, state, enqueued_at FROM {deferred}
          WHERE queue_id = {queue_id} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) d
),
-- Ids rise with time, but for the order of commits: the first and the last of a lease have its
-- ages.
leased AS (
    SELECT coalesce(sum(cardinality(ids)), 0)::bigint AS counted,
           coalesce(sum(cardinality(ids)) FILTER (WHERE vt <= statement_timestamp()), 0)::bigint AS due,
           min(enqueued_ats[1]) AS oldest, max(enqueued_ats[cardinality(ids)]) AS newest
    FROM (SELECT vt, ids, enqueued_ats FROM {lease}
          WHERE queue_id = {queue_id} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) l
),
waiting AS (
    SELECT count(*) AS counted, min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT enqueued_at FROM {waiting} WHERE queue_id = {queue_id}
          ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)) w
),
-- Groups whose head the next read will bring up, to be read at once or later.
begun AS (
    SELECT count(*) FILTER (WHERE first.later IS NOT true) AS counted,
           count(*) FILTER (WHERE first.later) AS later
    FROM (SELECT DISTINCT group_key
          FROM (SELECT group_key FROM {recheck} WHERE queue_id = {queue_id}
                ORDER BY id LIMIT (SELECT %(limit)s::bigint)) r) g
    CROSS JOIN LATERAL (SELECT vt > statement_timestamp() AS later FROM {waiting} w
                        WHERE w.queue_id = {queue_id} AND w.group_key = g.group_key
                        ORDER BY id LIMIT 1) first
    LEFT JOIN LATERAL (SELECT true AS found FROM {group} h
                       WHERE h.queue_id = {queue_id} AND h.group_key = g.group_key OFFSET 0) h ON true
    WHERE h.found IS NULL
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
FROM deferred d, leased l, ready_age a, waiting w, begun b
