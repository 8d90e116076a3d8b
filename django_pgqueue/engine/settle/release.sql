-- Given back by its holder, not started or interrupted: due at once, its deliveries uncounted. Fenced.
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
