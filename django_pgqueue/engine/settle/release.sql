-- Give back messages that were not started, or were interrupted: they are due at once, and the
-- delivery is not counted. Fenced.
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
