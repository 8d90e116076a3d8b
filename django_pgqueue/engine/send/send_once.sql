-- Insert a message unless its unique key is taken. Returns the id of the key's message.
WITH claimed AS MATERIALIZED (
    SELECT id, is_new FROM pgqueue_claim_keys({queue_id}, ARRAY[%(unique_key)s::text], %(window)s)
),
sent AS (
    INSERT INTO {message} (id, queue_id, scheduled_at, priority, group_key, unique_key, headers, body)
    SELECT id, {queue_id},
           coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
           %(priority)s, %(group)s::text, %(unique_key)s::text, %(headers)s::jsonb, %(body)s::jsonb
    FROM claimed WHERE is_new
)
SELECT id FROM claimed
