leased AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state, group_key)
    SELECT id, statement_timestamp() + %(vt)s, enqueued_at, statement_timestamp(),
           statement_timestamp(), {queue_id}, 1, %(process_id)s::integer, priority, 'PROCESSING',
           group_key
    FROM taken
)
