-- Returns an id for each message of a batch with unique keys, and whether it is new. For a held key
-- that is the id of its first message. Called by every send with keys.
--
-- A held key is only looked up, so a duplicate writes nothing. Other keys are claimed in key order,
-- so that two batches cannot deadlock. A second transaction with the same key waits until the first
-- commits or rolls back; ON CONFLICT then finds the key held. A key whose window has expired is
-- claimed again. Each call also deletes two expired keys.
--
-- Sessions cache plans. A plan made while there were few keys would delete expired keys by full
-- scans for good, so that statement is pinned to the index of expiry times. ORDER BY pins the
-- look-up to the primary key: for a small table the planner would choose the other index.

CREATE FUNCTION {schema}.pgqueue_claim_keys(queue integer, keys text[], during interval)
RETURNS TABLE (place bigint, id bigint, is_new boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM {schema}.pgqueue_clear_lost(q.id) FROM {schema}.pgqueue_queue q
    WHERE q.id = queue AND q.unlogged;

    RETURN QUERY
        WITH given AS MATERIALIZED (
            SELECT place, unique_key, nextval('{schema}.pgqueue_message_id_seq') AS id,
                   (SELECT CASE WHEN d.unique_key = k.unique_key AND d.until > statement_timestamp()
                                THEN d.id END
                    FROM {schema}.pgqueue_claim d
                    WHERE d.queue_id = queue AND d.unique_key >= k.unique_key
                    ORDER BY d.unique_key LIMIT 1) AS held
            FROM (SELECT * FROM unnest(keys) WITH ORDINALITY AS k (unique_key, place)
                  ORDER BY place) k
        ),
        claimed AS (
            INSERT INTO {schema}.pgqueue_claim AS d (queue_id, unique_key, id, until)
            SELECT DISTINCT ON (unique_key) queue, unique_key, id, statement_timestamp() + during
            FROM given WHERE unique_key IS NOT NULL AND held IS NULL
            ORDER BY unique_key, place
            ON CONFLICT (queue_id, unique_key) DO UPDATE
            SET id = CASE WHEN d.until <= statement_timestamp() THEN excluded.id ELSE d.id END,
                until = CASE WHEN d.until <= statement_timestamp() THEN excluded.until
                             ELSE d.until END
            RETURNING unique_key, id
        )
        SELECT g.place, coalesce(g.held, c.id, g.id),
               g.held IS NULL AND coalesce(c.id = g.id, true)
        FROM given g LEFT JOIN claimed c USING (unique_key)
        ORDER BY g.place;

    DELETE FROM {schema}.pgqueue_claim WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.pgqueue_claim
        WHERE queue_id = queue AND until <= statement_timestamp()
        ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED));
END
$$;

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_claim_keys(integer, text[], interval);
