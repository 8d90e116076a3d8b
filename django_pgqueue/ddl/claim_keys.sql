-- Ids for the messages of a batch, and which of them are new: a dedup key that counts already
-- gives the id of its first message. Senders and Spark's sink both call it.
--
-- Keys are claimed in their order, so that two batches cannot wait for each other.
CREATE FUNCTION {schema}.pgqueue_claim_keys(dedup regclass, queue integer, keys text[], during interval)
RETURNS TABLE (place bigint, id bigint, is_new boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format($claim$
        WITH given AS MATERIALIZED (
            SELECT place, dedup_key, nextval('{schema}.pgqueue_message_id_seq') AS id
            FROM (SELECT * FROM unnest($2) WITH ORDINALITY AS k (dedup_key, place)
                  ORDER BY place) k
        ),
        claimed AS (
            INSERT INTO %s AS d (queue_id, dedup_key, id, until)
            SELECT DISTINCT ON (dedup_key) $1, dedup_key, id, statement_timestamp() + $3
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
        ORDER BY g.place
    $claim$, dedup) USING queue, keys, during;
END
$$;

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_claim_keys(regclass, integer, text[], interval);
