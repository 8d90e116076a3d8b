-- What a leaf's outcomes come to: how many there are, whether all are old, and which transaction
-- was the last; how many are not exported. And how many are of transactions that this statement may
-- not see the end of: a second count of those tells whether any were added since.
SELECT count(a.id), coalesce(bool_and(a.archived_at < %(before)s), true), max(a.archive_xid),
       count(a.id) FILTER (WHERE a.archive_xid >= %(exported_below)s::bigint),
       count(a.id) FILTER (WHERE a.archive_xid >= s.xmin), max(s.xmin)
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) s
LEFT JOIN {archive} a ON true
