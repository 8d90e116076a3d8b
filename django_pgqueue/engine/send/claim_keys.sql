-- Ids for a batch with dedup keys, and which of its messages are new.
SELECT id, is_new, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM pgqueue_claim_keys({queue_id}, %(dedup_keys)s::text[], %(window)s)
ORDER BY place
