-- Not done: due again after a delay of each message's own. Fenced.
UPDATE {deferred}
SET vt = statement_timestamp()
        + (%(delays)s::float8[])[array_position(%(ids)s::bigint[], id)] * interval '1 second',
    state = 'RETRYABLE',
    attempts = attempts + %(ran)s,
    worker = NULL
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND {fence}
RETURNING id
