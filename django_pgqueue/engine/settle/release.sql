-- Give back messages that were not started, or were interrupted: they are due at once, and their
-- deliveries are not counted. Fenced.
UPDATE pgqueue_deferred
SET vt = statement_timestamp(),
    state = CASE WHEN read_ct > %(deliveries)s THEN 'RETRYABLE' ELSE 'SCHEDULED' END,
    read_ct = greatest(read_ct - %(deliveries)s, 0),
    process_id = NULL
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND state = 'PROCESSING'
  AND {settle/fence}
  AND {leases/unflushed}
RETURNING id
