COPY {message} (id, queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
FROM STDIN
