-- Ids for messages with dedup keys, and which of them are new: a key that still counts gives the id
-- of its first message. Senders of one message and of many call it, and Spark's sink.
-- Run once for each set of live tables: {twin} is empty or _unlogged.
--
-- Keys are claimed in their order, so that two batches cannot wait for each other. A second
-- transaction with the same key waits for the first to commit or roll back. A key whose window is
-- over is taken over, and two others are swept on the way.
--
-- A session keeps plans: one that was made while there were few keys would sweep by reading all of the
-- table for good, so it is pinned to an index.

CREATE FUNCTION {schema}.pgqueue_claim_keys{twin}(queue integer, keys text[], during interval)
RETURNS TABLE (place bigint, id bigint, is_new boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        WITH given AS MATERIALIZED (
            SELECT place, dedup_key, nextval('{schema}.pgqueue_message_id_seq') AS id
            FROM (SELECT * FROM unnest(keys) WITH ORDINALITY AS k (dedup_key, place)
                  ORDER BY place) k
        ),
        claimed AS (
            INSERT INTO {schema}.pgqueue_dedup{twin} AS d (queue_id, dedup_key, id, until)
            SELECT DISTINCT ON (dedup_key) queue, dedup_key, id, statement_timestamp() + during
            FROM given WHERE dedup_key IS NOT NULL
            ORDER BY dedup_key, place
            ON CONFLICT (queue_id, dedup_key) DO UPDATE
            SET id = CASE WHEN d.until <= statement_timestamp() THEN excluded.id ELSE d.id END,
                until = CASE WHEN d.until <= statement_timestamp() THEN excluded.until
                             ELSE d.until END
            RETURNING dedup_key, id
        )
        SELECT g.place, coalesce(c.id, g.id), c.id IS NULL OR c.id = g.id
        FROM given g LEFT JOIN claimed c USING (dedup_key)
        ORDER BY g.place;

    DELETE FROM {schema}.pgqueue_dedup{twin} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.pgqueue_dedup{twin}
        WHERE queue_id = queue AND until <= statement_timestamp()
        ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED));
END
$$;

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_claim_keys{twin}(integer, text[], interval);
