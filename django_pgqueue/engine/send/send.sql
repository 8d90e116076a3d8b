-- Insert one message. The trigger on its partition makes it ready or delayed, and wakes consumers.
INSERT INTO {message} (queue_id, scheduled_at, {expires_at}priority, group_key, headers, body)
VALUES ({queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
        {expires}%(priority)s, %(group)s::text, %(headers)s::jsonb, %(body)s::jsonb)
RETURNING id
