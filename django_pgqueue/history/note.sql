-- Writes a consumer process's history rows of one minute. Each write replaces the earlier one, so a
-- write may be repeated. Skips dropped queues, and minutes that may have been folded (fold.sql).
INSERT INTO pgqueue_history AS h
    (queue_id, bucket, seconds, process_id, waits, runs, sent, {counters})
SELECT r.queue_id, %(minute)s, 60, %(process_id)s, waits, runs, 0, {counters}
FROM jsonb_populate_recordset(NULL::pgqueue_history, %(rows)s::jsonb) r
JOIN pgqueue_queue q ON q.id = r.queue_id
WHERE %(minute)s > statement_timestamp() - interval '2 min'
ON CONFLICT (queue_id, bucket, seconds, process_id) DO UPDATE
SET waits = excluded.waits, runs = excluded.runs, {updates}
