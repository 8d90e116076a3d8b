-- Queues' counts in the last hour, by time slot. Slot 0 is the current minute, the others have two
-- minutes each.
SELECT queue_id, s.slot, sum(sent)::bigint, sum({ended})::bigint, sum({succeeded})::bigint,
       sum({failed})::bigint, sum(dead_lettered)::bigint, sum(retried)::bigint
FROM pgqueue_history
CROSS JOIN LATERAL (
    SELECT (extract(epoch FROM date_trunc('minute', statement_timestamp()) - bucket)::integer / 60 + 1) / 2
           AS slot) s
WHERE seconds = 60 AND bucket >= date_trunc('minute', statement_timestamp()) - interval '1 hour'
  AND queue_id = ANY(%(queues)s)
GROUP BY queue_id, s.slot
