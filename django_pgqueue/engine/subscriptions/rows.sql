-- In place of leases/rows.sql: messages that leave a batch lease of a subscription become its own, with
-- a copy of the source's row.
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
    {subscriptions/deferred_row}
    FROM bodies b
    CROSS JOIN LATERAL (
        SELECT vt, read_at, process_id, (b.scheduled_at > read_at) IS TRUE AS early
        FROM gone WHERE b.id = ANY(gone.ids) LIMIT 1) g
    RETURNING id
)
