-- Statements of refusals.py, a part each.

-- {refusals/record}
INSERT INTO pgqueue_refusal (message_id, refused, error)
SELECT id, %s, error FROM unnest(%s::bigint[], %s::text[]) AS told (id, error)
ON CONFLICT (message_id) DO UPDATE
SET refused = excluded.refused, error = excluded.error, told_at = DEFAULT

-- {refusals/acknowledged}
DELETE FROM pgqueue_refusal WHERE message_id = ANY(%s) RETURNING message_id, refused, error
