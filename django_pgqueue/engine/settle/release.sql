-- Given back by its holder, not started or interrupted: due at once, the delivery uncounted. Fenced.
UPDATE pgqueue_deferred
SET vt = statement_timestamp(),
    state = CASE read_ct WHEN 1 THEN 'SCHEDULED' ELSE 'RETRYABLE' END,
    read_ct = read_ct - 1,
    process_id = NULL
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND state = 'PROCESSING'
  AND {settle/fence}
  AND {leases/unflushed}
RETURNING id
