-- Insert one message. The trigger on its partition makes it ready or delayed, and wakes consumers.
INSERT INTO {message} (queue_id, scheduled_at, {expires_at}{common_columns}, group_key, headers, body)
VALUES ({queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
        {expires}{common_values}, %(group)s::text, %(headers)s::jsonb, %(body)s::jsonb)
RETURNING id
