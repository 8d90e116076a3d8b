-- Fail messages of a queue without a dead-letter queue: archive them with their error. Fenced.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/fence}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts, error
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, error, failure)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts + %(ran)s,
       'FAILED', e.text, {errors/kind}
FROM gone CROSS JOIN LATERAL (SELECT {settle/error} AS text OFFSET 0) e
RETURNING id
