-- Give back messages that were not started, or were interrupted: they are due at once, and their
-- deliveries are not counted. Fenced.
UPDATE pgqueue_deferred
SET vt = statement_timestamp(),
    state = CASE WHEN read_ct > %(deliveries)s THEN 'RETRYABLE' ELSE 'SCHEDULED' END,
    read_ct = greatest(read_ct - %(deliveries)s, 0),
    process_id = NULL
WHERE {settle/fence}
  AND state = 'PROCESSING'
  AND {leases/unflushed}
RETURNING id
