-- The metrics of all queues in one statement, since one for each queue would take too long. Counts
-- are exact up to a limit for each queue. The limit for ready messages is lower if the statistics
-- show many of them. Ages are those of the counted messages and the last ready one.
SELECT q.name, q.id, q.source_id, up_to.most, r.counted, w.counted, f.ready, f.delayed, d.counted, l.counted, d.due + l.due,
       d.in_flight + l.counted - l.due, d.delayed,
       extract(epoch FROM statement_timestamp() - least(r.oldest, d.oldest, l.oldest, w.oldest))::float AS oldest_age,
       extract(epoch FROM statement_timestamp() - greatest(r.newest, last.enqueued_at, d.newest, l.newest, w.newest))::float
           AS newest_age,
       coalesce(s.archived, 0), coalesce(s.live, 0), coalesce(s.archived, 0),
       coalesce(s.inserted, 0), statement_timestamp(), f.complete,
       d.loose_delayed, d.loose_retries, b.found
FROM pgqueue_queue q
CROSS JOIN LATERAL (
    SELECT sum(pg_stat_get_live_tuples(t.id)) FILTER (WHERE own.is_message)::bigint AS live,
           sum(pg_stat_get_tuples_inserted(t.id)) FILTER (WHERE own.is_message)::bigint AS inserted,
           sum(pg_stat_get_live_tuples(t.id)) FILTER (WHERE NOT own.is_message)::bigint AS archived
    FROM (VALUES (true, to_regclass('pgqueue_message_q' || q.id)),
                 (false, to_regclass('pgqueue_archive_q' || q.id))) own (is_message, id)
    CROSS JOIN LATERAL (
        SELECT own.id WHERE q.partition_interval IS NULL
        UNION ALL
        SELECT relid FROM pg_partition_tree(own.id) WHERE q.partition_interval IS NOT NULL) t) s
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.live - s.archived > 2 * %(limit)s THEN %(enough)s ELSE %(limit)s END AS most OFFSET 0) up_to
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, min(enqueued_at) AS oldest, max(enqueued_at) AS newest
    FROM (SELECT enqueued_at FROM pgqueue_ready WHERE queue_id = q.id
          ORDER BY -priority, turn LIMIT up_to.most) r) r
LEFT JOIN LATERAL (
    SELECT enqueued_at FROM pgqueue_ready WHERE queue_id = q.id AND r.counted = up_to.most
    ORDER BY -priority DESC, turn DESC LIMIT 1) last ON true
{metrics/counts}
ORDER BY q.name
