-- Set the visibility timeout, counted from now. Fenced; counts no delivery.
UPDATE pgqueue_deferred
SET vt = coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
WHERE {settle/fence}
  AND {leases/unflushed}
RETURNING id
