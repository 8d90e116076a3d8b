-- Many messages in one statement; ids rise in the order of the arrays.
INSERT INTO {message} (queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
SELECT {queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
       %(priority)s, b.group_key, b.dedup_key, b.headers::jsonb, b.body::jsonb
FROM unnest(%(bodies)s::text[], %(headers)s::text[], %(groups)s::text[], %(dedup_keys)s::text[])
    WITH ORDINALITY AS b (body, headers, group_key, dedup_key, place)
ORDER BY b.place
RETURNING id
