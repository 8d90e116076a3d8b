-- Set the visibility timeout, counted from now. Fenced; counts no delivery.
UPDATE pgqueue_deferred
SET vt = coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND {settle/fence}
  AND {leases/unflushed}
RETURNING id
