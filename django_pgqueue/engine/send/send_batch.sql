-- Insert many messages, with ids in the order of the lists. Bodies are one JSON array: in an array of
-- text every quote would be escaped twice. If headers or groups are NULL, no message has one.
INSERT INTO {message} (queue_id, scheduled_at, {expires_at}{common_columns}, group_key, headers, body)
SELECT {queue_id}, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
       {expires}{common_values}, b.group_key, nullif(b.headers, 'null'), nullif(b.body, 'null')
FROM ROWS FROM (
    jsonb_array_elements(%(bodies)s::jsonb), jsonb_array_elements(%(headers)s::jsonb),
    unnest(%(group)s::text[])
) WITH ORDINALITY AS b (body, headers, group_key, place)
ORDER BY b.place
RETURNING id
