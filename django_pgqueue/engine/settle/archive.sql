-- Complete messages: delete the lease, insert the outcome; the body is not moved. Fenced. P3, P4, P7.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/fence}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, result)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts + %(ran)s,
       'COMPLETED', %(results)s::jsonb -> id::text
FROM gone
RETURNING id
