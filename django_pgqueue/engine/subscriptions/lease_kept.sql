-- For a subscription with a limit, which counts rows of deferred: the messages become its own at once.
kept AS (
    INSERT INTO {message} (queue_id, {copied_columns})
    SELECT {queue_id}, m.*
    FROM taken t CROSS JOIN LATERAL (
        SELECT {copied_columns} FROM {source_message} m
        WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at OFFSET 0) m
    RETURNING id
),
leased AS (
    {subscriptions/deferred_row}
    FROM taken CROSS JOIN LATERAL (
        SELECT statement_timestamp() + %(vt)s AS vt, statement_timestamp() AS read_at,
               %(process_id)s::integer AS process_id, read_scheduled_at AS scheduled_at,
               (read_scheduled_at > statement_timestamp()) IS TRUE AS early) e
)
