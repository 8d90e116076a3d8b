-- Ids for a batch with dedup keys, and which of its messages are new. Keys are claimed in their
-- order, so that two batches cannot wait for each other.
WITH given AS MATERIALIZED (
    SELECT place, dedup_key, nextval('pgqueue_message_id_seq') AS id
    FROM (SELECT * FROM unnest(%(dedup_keys)s::text[]) WITH ORDINALITY AS k (dedup_key, place)
          ORDER BY place) k
),
claimed AS (
    INSERT INTO {dedup} AS d (queue_id, dedup_key, id, until)
    SELECT DISTINCT ON (dedup_key) {queue_id}, dedup_key, id, statement_timestamp() + %(window)s
    FROM given WHERE dedup_key IS NOT NULL
    ORDER BY dedup_key, place
    ON CONFLICT (queue_id, dedup_key) DO UPDATE
    SET id = CASE WHEN d.until <= statement_timestamp() THEN excluded.id ELSE d.id END,
        until = CASE WHEN d.until <= statement_timestamp() THEN excluded.until ELSE d.until END
    RETURNING dedup_key, id
)
SELECT coalesce(c.id, g.id), c.id IS NULL OR c.id = g.id,
       coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM given g LEFT JOIN claimed c USING (dedup_key)
ORDER BY g.place
