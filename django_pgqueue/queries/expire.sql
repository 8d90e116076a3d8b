-- One stretch of a leaf's outcomes, as they lie on disk: what is old goes, outcome and message
-- together, except what is not exported yet. By place, because there is no order that outcomes
-- are old in: an index would cost every archiving, and a BRIN index forgets nothing when rows go.
-- The + 0 keeps the planner from the index on archive_xid.
WITH old AS MATERIALIZED (
    SELECT ctid, archive_xid FROM {archive}
    WHERE ctid >= %(first)s::tid AND ctid < %(end)s::tid
      AND archived_at < %(before)s
    LIMIT (SELECT %(batch)s::bigint)
),
gone AS (
    DELETE FROM {archive}
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM old
                           WHERE archive_xid + 0 < coalesce(%(exported_below)s::bigint, 9223372036854775807)))
    RETURNING id, archive_xid
),
messages AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
)
SELECT (SELECT count(*) FROM gone), (SELECT max(archive_xid) FROM gone),
       count(*) - (SELECT count(*) FROM gone), count(*), max(ctid)::text
FROM old
