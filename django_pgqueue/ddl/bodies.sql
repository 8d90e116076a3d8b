-- What messages of a queue say, for statements that serve any queue: they cannot name its leaf, and
-- over the parent they would be planned for, and lock, the leaves of all. Looked up by the primary
-- key; the two moments leave out the other slices of a queue that is split by time.
CREATE FUNCTION {schema}.pgqueue_bodies(
    queue_number integer, ids bigint[], earliest timestamptz, latest timestamptz)
RETURNS TABLE (id bigint, body jsonb, headers jsonb) LANGUAGE plpgsql STABLE ROWS 100
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF ids <> '{}' THEN
        RETURN QUERY EXECUTE
            'SELECT id, body, headers FROM {schema}.pgqueue_message_q' || queue_number ||
            ' WHERE id = ANY($1) AND enqueued_at BETWEEN $2 AND $3'
        USING ids, earliest, latest;
    END IF;
END
$$;

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_bodies(integer, bigint[], timestamptz, timestamptz);
