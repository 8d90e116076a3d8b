-- Part of groups.sql and slots.sql: inserts the new heads, which "moved" took from waiting, into
-- ready, or into deferred until due_at.
readable AS (
    INSERT INTO {schema}.pgqueue_ready (id, turn, enqueued_at, queue_id, priority, group_key)
    SELECT id, turn, enqueued_at, queue_id, priority, group_key FROM moved
    WHERE read_ct = 0 AND due_at <= statement_timestamp()
),
not_yet AS (
    INSERT INTO {schema}.pgqueue_deferred
        (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts, priority, state,
         group_key, error)
    SELECT id, due_at, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts, priority,
           CASE read_ct WHEN 0 THEN 'SCHEDULED' ELSE 'RETRYABLE' END, group_key, error
    FROM moved
    WHERE read_ct > 0 OR due_at > statement_timestamp()
)
