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
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state)
    SELECT id, CASE WHEN early THEN read_scheduled_at ELSE now + %(vt)s END, enqueued_at,
           CASE WHEN NOT early THEN now END, CASE WHEN NOT early THEN now END, {queue_id},
           CASE WHEN early THEN 0 ELSE 1 END,
           CASE WHEN NOT early THEN %(process_id)s::integer END, priority,
           CASE WHEN early THEN 'SCHEDULED' ELSE 'PROCESSING' END
    FROM taken CROSS JOIN LATERAL (
        SELECT statement_timestamp() AS now,
               (read_scheduled_at > statement_timestamp()) IS TRUE AS early) e
)
