-- Part of metrics.sql and metrics_all.sql: counts the messages of queue {of} up to the limit,
-- except the ready ones. Each subquery is ordered by an index and has a limit that the planner
-- cannot see: otherwise the planner would scan the rows of other queues (P1).
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT enqueued_at FROM pgqueue_waiting WHERE queue_id = {of}
          ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)) w) w
-- The first messages of groups without a head. w.counted includes them, too.
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE place = 'ready') AS ready,
           count(*) FILTER (WHERE place = 'delayed') AS delayed,
           (SELECT true FROM pgqueue_recheck WHERE queue_id = {of}
            ORDER BY id OFFSET (SELECT {places/rechecks}) LIMIT 1) IS NULL AS complete
    FROM (SELECT place FROM ({places/headless}) f LIMIT (SELECT %(limit)s::bigint)) f
    WHERE w.counted > 0) f
CROSS JOIN LATERAL (
    SELECT count(*) AS counted,
           count(*) FILTER (WHERE {places/due}) AS due,
           count(*) FILTER (WHERE {places/in_flight}) AS in_flight,
           count(*) FILTER (WHERE {places/delayed}) AS delayed,
           count(*) FILTER (WHERE {places/due} AND group_key IS NULL) AS loose_due,
           count(*) FILTER (WHERE {places/delayed} AND group_key IS NULL) AS loose_delayed,
           count(*) FILTER (WHERE {places/delayed} AND group_key IS NULL AND {reasons/retry}) AS loose_retries,
           count(group_key) AS grouped,
           min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT vt, state, enqueued_at, group_key, read_ct FROM pgqueue_deferred
          WHERE queue_id = {of} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) d) d
-- Takes the first message of a lease as its oldest, and the last one as its newest: ids rise with
-- time, though commits may come in another order.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(ids)), 0)::bigint AS counted,
           coalesce(sum(cardinality(ids)) FILTER (WHERE {places/due}), 0)::bigint AS due,
           min(enqueued_ats[1]) AS oldest, max(enqueued_ats[cardinality(ids)]) AS newest
    FROM (SELECT vt, ids, enqueued_ats FROM pgqueue_lease
          WHERE queue_id = {of} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) l) l
{metrics/blocked}
