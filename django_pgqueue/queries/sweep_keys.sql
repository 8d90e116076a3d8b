-- A batch of dedup keys whose window is over. A send that takes one over at this moment keeps it.
DELETE FROM {dedup} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {dedup}
    WHERE queue_id = {queue_id} AND until <= statement_timestamp()
    ORDER BY until
    LIMIT (SELECT %(batch)s::bigint)
    FOR UPDATE SKIP LOCKED))
RETURNING 1
