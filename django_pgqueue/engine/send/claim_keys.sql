-- Claim the unique keys of a batch. Returns an id for each message, and whether it is new.
SELECT id, is_new, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM pgqueue_claim_keys({queue_id}, %(unique_keys)s::text[], %(window)s)
ORDER BY place
