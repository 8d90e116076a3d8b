-- Summarises a partition's outcomes: how many, whether all are old, their last transaction, how
-- many are not exported, and how many are of transactions from xmin on ("unsettled"). More such
-- transactions may commit later: if "unsettled" differs then, outcomes were added.
SELECT count(a.id) AS total,
       coalesce(bool_and(a.archived_at < %(before)s), true) AS all_old,
       max(a.archive_xid) AS last_xid,
       count(a.id) FILTER (WHERE a.archive_xid >= %(exported_below)s::bigint) AS not_exported,
       count(a.id) FILTER (WHERE a.archive_xid >= s.xmin) AS unsettled,
       max(s.xmin) AS xmin
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) s
LEFT JOIN {archive} a ON true
