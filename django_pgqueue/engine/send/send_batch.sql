-- Many messages; ids rise in the order of the lists. Bodies travel as one JSON array: in an array
-- of texts each quote would be escaped, and parsed, once more. Headers and groups that are NULL
-- mean a NULL for each message.
INSERT INTO {message} (queue_id, scheduled_at, priority, group_key, headers, body)
SELECT {queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
       %(priority)s, b.group_key, nullif(b.headers, 'null'), nullif(b.body, 'null')
FROM ROWS FROM (
    jsonb_array_elements(%(bodies)s::jsonb), jsonb_array_elements(%(headers)s::jsonb),
    unnest(%(group)s::text[])
) WITH ORDINALITY AS b (body, headers, group_key, place)
ORDER BY b.place
RETURNING id
