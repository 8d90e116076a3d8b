-- Add to the count of an entry that has not ended.
UPDATE pgqueue_audit
SET count = coalesce(count, 0) + %(count)s,
    ended_at = CASE WHEN %(ended)s THEN statement_timestamp() END
WHERE id = %(id)s AND ended_at IS NULL
RETURNING id
