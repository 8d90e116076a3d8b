each AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state)
    SELECT m.id, vt, m.enqueued_at, read_at, read_at, {queue_id}, 1, process_id, priority,
           'PROCESSING'
    FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    RETURNING id
)
