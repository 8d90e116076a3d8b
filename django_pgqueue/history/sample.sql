-- Writes the current backlog of queues, and the messages sent since each queue's last sample. Skips
-- queues that stayed empty and to which nothing was sent. A sample is due in the middle of each minute.
-- A sample before the middle is late, and counts for the previous minute.
INSERT INTO pgqueue_history AS h
    (queue_id, bucket, seconds, process_id, {counters}, waits, runs, sent, depth, oldest, total)
SELECT q.id, date_trunc('minute', statement_timestamp() - interval '30 s', 'UTC'), 60, 0, {zeros},
       '{{}}', '{{}}',
       -- For a new queue, all messages sent count. After a reset of the statistics, none do, nor for a
       -- new subscription, whose total is its source's.
       greatest(0, r.total - coalesce(last.total, CASE
           WHEN q.created_at > statement_timestamp() - interval '10 min' AND q.source_id IS NULL
           THEN 0 ELSE r.total END)),
       r.depth, r.oldest, r.total
FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
    name text, depth bigint, oldest float8, total bigint)
JOIN pgqueue_queue q ON q.name = r.name
LEFT JOIN LATERAL (
    SELECT total, depth FROM pgqueue_history
    WHERE queue_id = q.id AND total IS NOT NULL ORDER BY bucket DESC LIMIT 1) last ON true
WHERE last.total IS DISTINCT FROM r.total OR r.depth > 0 OR last.depth > 0
ON CONFLICT (queue_id, bucket, seconds, process_id) DO UPDATE
SET sent = h.sent + excluded.sent, depth = excluded.depth, oldest = excluded.oldest,
    total = excluded.total
