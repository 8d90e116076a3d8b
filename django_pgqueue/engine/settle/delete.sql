-- Delete messages with their bodies. Fenced.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND {settle/fence}
    RETURNING id
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
RETURNING id
