-- Many messages in one statement; ids rise in the order of the lists. The bodies travel as one JSON
-- array: in an array of texts every quote of theirs would be escaped, and parsed, once more.
-- A list that is NULL stands for as many NULLs.
INSERT INTO {message} (queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
SELECT {queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
       %(priority)s, b.group_key, b.dedup_key, nullif(b.headers, 'null'), nullif(b.body, 'null')
FROM ROWS FROM (
    jsonb_array_elements(%(bodies)s::jsonb), jsonb_array_elements(%(headers)s::jsonb),
    unnest(%(groups)s::text[]), unnest(%(dedup_keys)s::text[])
) WITH ORDINALITY AS b (body, headers, group_key, dedup_key, place)
ORDER BY b.place
RETURNING id
