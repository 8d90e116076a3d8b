-- Outcomes of a partition, from a stretch of its pages: the old ones are deleted, each
-- with its message, except those that are not exported yet. By place, because no order has the old
-- ones first: an index would cost every archiving, and a BRIN index keeps its ranges when rows go.
-- They are deleted by id: should the table get partitions at this moment, a place would mean a row
-- in each of them.
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
SELECT (SELECT count(*) FROM gone) AS gone,
       (SELECT max(archive_xid) FROM gone) AS last_xid,
       count(*) FILTER (WHERE archive_xid >= %(exported_below)s::bigint) AS held,
       count(*) AS old,
       max(ctid)::text AS last_place
FROM old
