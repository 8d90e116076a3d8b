-- A part of metrics.sql and metrics_all.sql: all but what is ready, of the queue {of}. Counts are
-- exact up to the limit, in the order of an index, and with a limit that the planner cannot see: or
-- it would go through the rows of all other queues (P1).
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT enqueued_at FROM {waiting} WHERE queue_id = {of}
          ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)) w) w
-- Groups whose head the next read will bring up, to be read at once or later.
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE first.later IS NOT true) AS counted,
           count(*) FILTER (WHERE first.later) AS later
    FROM (SELECT DISTINCT group_key
          FROM (SELECT group_key FROM {recheck} WHERE queue_id = {of}
                ORDER BY id LIMIT (SELECT %(limit)s::bigint)) r) g
    CROSS JOIN LATERAL (SELECT vt > statement_timestamp() AS later FROM {waiting} w
                        WHERE w.queue_id = {of} AND w.group_key = g.group_key
                        ORDER BY id LIMIT 1) first
    LEFT JOIN LATERAL (SELECT true AS found FROM {group} h
                       WHERE h.queue_id = {of} AND h.group_key = g.group_key OFFSET 0) h ON true
    WHERE w.counted > 0 AND h.found IS NULL) b
CROSS JOIN LATERAL (
    SELECT count(*) AS counted,
           count(*) FILTER (WHERE vt <= statement_timestamp()) AS due,
           count(*) FILTER (WHERE vt > statement_timestamp() AND state = 'PROCESSING') AS in_flight,
           count(*) FILTER (WHERE vt > statement_timestamp() AND state <> 'PROCESSING') AS delayed,
           min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT vt, state, enqueued_at FROM {deferred}
          WHERE queue_id = {of} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) d) d
-- Ids rise with time, but for the order of commits: the first and the last of a lease have its
-- ages.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(ids)), 0)::bigint AS counted,
           coalesce(sum(cardinality(ids)) FILTER (WHERE vt <= statement_timestamp()), 0)::bigint AS due,
           min(enqueued_ats[1]) AS oldest, max(enqueued_ats[cardinality(ids)]) AS newest
    FROM (SELECT vt, ids, enqueued_ats FROM {lease}
          WHERE queue_id = {of} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) l) l
