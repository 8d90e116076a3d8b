-- The seconds that each queue's oldest readable message has waited to be read.
SELECT q.id, extract(epoch FROM statement_timestamp() - least(r.since, d.since, l.since, f.since))
       AS seconds
FROM pgqueue_queue q
CROSS JOIN LATERAL (
    WITH RECURSIVE {metrics/level}
    SELECT min(o.enqueued_at) AS since
    FROM level CROSS JOIN LATERAL (
        SELECT enqueued_at FROM pgqueue_ready r
        WHERE r.queue_id = q.id AND -r.priority = level.rank ORDER BY r.turn LIMIT 1) o) r
LEFT JOIN LATERAL (SELECT vt AS since FROM pgqueue_deferred
                   WHERE queue_id = q.id AND {places/due} ORDER BY vt LIMIT 1) d ON true
LEFT JOIN LATERAL (SELECT vt AS since FROM pgqueue_lease
                   WHERE queue_id = q.id AND {places/due} ORDER BY vt LIMIT 1) l ON true
CROSS JOIN LATERAL (SELECT min(enqueued_at) AS since FROM ({places/headless}) f
                    WHERE place = 'ready') f
WHERE q.id = ANY(%(queues)s)
  AND coalesce(r.since, d.since, l.since, f.since) IS NOT NULL
