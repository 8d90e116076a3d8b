-- One stretch of a leaf's outcomes, as they lie on disk: what is old goes, outcome and message
-- together, except what is not exported yet. By place, because there is no order that outcomes
-- are old in: an index would cost every archiving, and a BRIN index forgets nothing when rows go.
-- They are deleted by id: should the leaf be given partitions at this moment, a place would mean
-- a row in each of them.
WITH old AS MATERIALIZED (
    SELECT ctid, id, archive_xid FROM {archive}
    WHERE ctid >= %(first)s::tid AND ctid < %(end)s::tid
      AND archived_at < %(before)s
    LIMIT (SELECT %(batch)s::bigint)
),
gone AS (
    DELETE FROM {archive}
    WHERE id = ANY(ARRAY(SELECT id FROM old
                         WHERE %(exported_below)s::bigint IS NULL
                            OR archive_xid < %(exported_below)s::bigint))
    RETURNING id, archive_xid
),
messages AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
)
SELECT (SELECT count(*) FROM gone), (SELECT max(archive_xid) FROM gone),
       count(*) FILTER (WHERE archive_xid >= %(exported_below)s::bigint), count(*), max(ctid)::text
FROM old
