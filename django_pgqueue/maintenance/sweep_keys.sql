-- Look at up to batch unique keys: delete those that are no longer held, and look at the others again
-- when they are twice as old. Skips keys that a send is taking over. Returns how many were looked at,
-- and how many deleted.
WITH due AS MATERIALIZED (
    SELECT ctid, pgqueue_holds_key(c) AS held FROM pgqueue_claim c
    WHERE queue_id = {queue_id} AND kind = ANY('{{window,started,done}}')
      AND until <= statement_timestamp()
    LIMIT (SELECT %(batch)s::bigint)
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_claim WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT held))
    RETURNING 1
),
kept AS (
    UPDATE pgqueue_claim SET until = statement_timestamp() + (statement_timestamp() - first_at)
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE held))
)
SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM gone)
