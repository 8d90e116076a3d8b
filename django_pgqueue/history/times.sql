-- The recent counts in each bucket of wait and run times. LATERAL reads queue by queue, so that the
-- planner adds the buckets by hashing: for all queues at once it would sort them.
SELECT q.id, t.kind, t.key, t.number
FROM unnest(%(queues)s::integer[]) AS q (id)
CROSS JOIN LATERAL (
    SELECT t.kind, t.key, sum(t.value::bigint)::bigint AS number
    FROM pgqueue_history h
    CROSS JOIN LATERAL (
        SELECT 'waits' AS kind, key, value FROM jsonb_each_text(h.waits)
        UNION ALL SELECT 'runs', key, value FROM jsonb_each_text(h.runs)) t
    WHERE h.seconds = 60 AND h.bucket > statement_timestamp() - %(lately)s * interval '1 second'
      AND h.queue_id = q.id
    GROUP BY t.kind, t.key) t
