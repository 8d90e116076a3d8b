-- Where a subscription begins, as the columns since, until, after_xid and after_id of a position: before
-- all messages, before the first message in order that has at least this id or was sent at this moment
-- or later, or behind all that is visible. Messages of transactions that still run come later, and so do
-- those that this transaction sends from now on: pg_current_snapshot() may show its id, or not.
WITH now AS MATERIALIZED (
    SELECT snapshot, own, CASE WHEN own IS NULL THEN snapshot ELSE pgqueue_own_snapshot() END AS visible,
           ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(snapshot) AS x
                 UNION SELECT own WHERE own IS NOT NULL) AS running
    FROM (SELECT pg_current_snapshot() AS snapshot,
                 pg_current_xact_id_if_assigned()::text::bigint AS own) s
),
first AS MATERIALIZED (
    SELECT m.enqueued_xid AS xid, m.id
    FROM {source_message} m
    WHERE CASE WHEN %(id)s::bigint IS NULL THEN m.enqueued_at >= %(at)s::timestamptz
               ELSE m.id >= %(id)s::bigint END
    ORDER BY m.enqueued_xid, m.id LIMIT 1
),
-- What the last round has shown: everything before this id, but for the transactions that run.
bound AS MATERIALIZED (
    SELECT b.xid, min(x) AS lowest, string_agg(x::text, ',' ORDER BY x) AS listed
    FROM now LEFT JOIN first ON NOT %(earliest)s
    CROSS JOIN LATERAL (
        SELECT coalesce(first.xid, pg_snapshot_xmax(now.snapshot)::text::bigint) AS xid) b
    LEFT JOIN LATERAL unnest(now.running) AS x ON x < b.xid
    GROUP BY b.xid
)
SELECT CASE WHEN %(earliest)s THEN '1:1:'
            ELSE concat(coalesce(bound.lowest, bound.xid), ':', bound.xid, ':', bound.listed) END,
       CASE WHEN first.xid IS NOT NULL OR now.own IS NOT NULL AND NOT %(earliest)s
            THEN now.visible::text END,
       coalesce(first.xid, CASE WHEN NOT %(earliest)s THEN now.own END, 0),
       coalesce(first.id - 1, CASE WHEN NOT %(earliest)s THEN (
           SELECT m.id FROM {source_message} m WHERE m.enqueued_xid = now.own
           ORDER BY m.id DESC LIMIT 1) END, 0)
FROM now CROSS JOIN bound LEFT JOIN first ON NOT %(earliest)s
