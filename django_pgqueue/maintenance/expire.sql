-- Deletes old outcomes and their messages, for a range of the archive table's pages. Outcomes not
-- yet exported stay. Reads pages, since an index in the order of archiving would slow down all
-- archiving. Deletes rows by id, since after a concurrent partitioning of the table a ctid would
-- match a row in each partition.
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
