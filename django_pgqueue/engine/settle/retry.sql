-- Retry messages, each after its own delay. A message keeps its error until the next one is
-- reported. Fenced; only leased messages match, so that no attempt is counted twice.
UPDATE pgqueue_deferred
SET vt = statement_timestamp()
        + (%(delays)s::float8[])[array_position(%(ids)s::bigint[], id)] * interval '1 second',
    state = 'RETRYABLE',
    attempts = attempts + %(ran)s,
    error = coalesce((%(errors)s::text[])[array_position(%(ids)s::bigint[], id)], error),
    process_id = NULL
WHERE {settle/fence}
  AND state = 'PROCESSING'
RETURNING id
