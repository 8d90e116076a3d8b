-- Deletes unique keys whose window is over, up to a limit. Skips keys that a send has locked.
DELETE FROM pgqueue_claim WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM pgqueue_claim
    WHERE queue_id = {queue_id} AND until <= statement_timestamp()
    ORDER BY until
    LIMIT (SELECT %(batch)s::bigint)
    FOR UPDATE SKIP LOCKED))
RETURNING 1
