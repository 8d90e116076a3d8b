-- Many messages in one statement, each as most are: see send.sql. Ids rise in the order of the
-- lists. The bodies travel as one JSON array: in an array of texts every quote of theirs would be
-- escaped, and parsed, once more. Headers that are NULL stand for as many NULLs.
INSERT INTO {message} (queue_id, headers, body)
SELECT {queue_id}, nullif(b.headers, 'null'), nullif(b.body, 'null')
FROM ROWS FROM (
    jsonb_array_elements(%(bodies)s::jsonb), jsonb_array_elements(%(headers)s::jsonb)
) WITH ORDINALITY AS b (body, headers, place)
ORDER BY b.place
RETURNING id
