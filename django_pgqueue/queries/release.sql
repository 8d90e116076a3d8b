-- Given back unstarted by the one who holds it: due at once, the delivery uncounted. Fenced.
UPDATE {deferred}
SET vt = statement_timestamp(),
    state = CASE read_ct WHEN 1 THEN 'SCHEDULED' ELSE 'RETRYABLE' END,
    read_ct = read_ct - 1,
    worker = NULL
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND {fence}
RETURNING id
