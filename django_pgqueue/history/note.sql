-- Writes a consumer process's history rows of one minute. Each write replaces the earlier one, so a
-- write may be repeated. Skips dropped queues, and minutes that may have been folded (fold.sql).
INSERT INTO pgqueue_history AS h
    (queue_id, bucket, seconds, process_id, completed, retried, failed, dead_lettered, expired,
     lost, busy, waits, runs, sent)
SELECT r.queue_id, %(minute)s, 60, %(process_id)s, r.completed, r.retried, r.failed,
       r.dead_lettered, r.expired, r.lost, r.busy, r.waits, r.runs, 0
FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (
    queue_id integer, completed bigint, retried bigint, failed bigint, dead_lettered bigint,
    expired bigint, lost bigint, busy float8, waits jsonb, runs jsonb)
JOIN pgqueue_queue q ON q.id = r.queue_id
WHERE %(minute)s > statement_timestamp() - interval '2 min'
ON CONFLICT (queue_id, bucket, seconds, process_id) DO UPDATE
SET completed = excluded.completed, retried = excluded.retried, failed = excluded.failed,
    dead_lettered = excluded.dead_lettered, expired = excluded.expired, lost = excluded.lost, busy = excluded.busy,
    waits = excluded.waits, runs = excluded.runs
