-- In place of leases/rows.sql: messages that leave a batch lease of a subscription become its own, with
-- a copy of the source's row. One that a sender has delayed was leased before its time, and waits for it.
bodies AS (
    INSERT INTO {message} (queue_id, {copied_columns})
    SELECT {queue_id}, m.*
    FROM gone CROSS JOIN LATERAL unnest(gone.ids, gone.enqueued_ats) AS u (id, enqueued_at)
    CROSS JOIN LATERAL (
        SELECT {copied_columns} FROM {source_message} m
        WHERE m.id = u.id AND m.enqueued_at = u.enqueued_at OFFSET 0) m
    RETURNING id, enqueued_at, scheduled_at, priority
),
each AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state)
    SELECT b.id, CASE WHEN early THEN b.scheduled_at ELSE vt END, b.enqueued_at,
           CASE WHEN NOT early THEN read_at END, CASE WHEN NOT early THEN read_at END, {queue_id},
           CASE WHEN early THEN 0 ELSE 1 END, CASE WHEN NOT early THEN process_id END, b.priority,
           CASE WHEN early THEN 'SCHEDULED' ELSE 'PROCESSING' END
    FROM bodies b
    CROSS JOIN LATERAL (
        SELECT vt, read_at, process_id, (b.scheduled_at > read_at) IS TRUE AS early
        FROM gone WHERE b.id = ANY(gone.ids) LIMIT 1) g
    RETURNING id
)
