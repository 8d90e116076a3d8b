INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, error)
SELECT id, enqueued_at, CASE WHEN read_ct > 0 THEN first_read_at END,
       CASE WHEN read_ct > 0 THEN last_read_at END, {queue_id}, read_ct, attempts, 'EXPIRED', error
FROM gone
RETURNING id
