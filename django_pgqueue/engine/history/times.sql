-- How often queues had waits and run times of each bucket in the last ten minutes.
SELECT h.queue_id, t.kind, t.key, sum(t.value::bigint)::bigint
FROM pgqueue_history h
CROSS JOIN LATERAL (
    SELECT 'wait' AS kind, key, value FROM jsonb_each_text(h.waits)
    UNION ALL SELECT 'run', key, value FROM jsonb_each_text(h.runs)) t
WHERE h.seconds = 60 AND h.bucket > statement_timestamp() - interval '10 min'
  AND h.queue_id = ANY(%(queues)s)
GROUP BY h.queue_id, t.kind, t.key
