-- Delete messages with their bodies. Fenced.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/fence}
    RETURNING id
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
RETURNING id
