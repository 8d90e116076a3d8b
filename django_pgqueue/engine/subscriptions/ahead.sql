-- Part that other statements include: the next {most} messages behind the position p, in order. First
-- those of transactions that were running when the last round began and have committed since; then the
-- later transactions. P1.
(SELECT m.*
 FROM (SELECT x::text::bigint AS xid FROM pg_snapshot_xip(p.since) AS x
       WHERE x::text::bigint >= p.after_xid ORDER BY 1) x
 CROSS JOIN LATERAL (
     SELECT * FROM {source_message} m
     WHERE m.enqueued_xid = x.xid
       AND m.id > CASE WHEN x.xid = p.after_xid THEN p.after_id ELSE -9223372036854775808 END
       AND (x.xid < p.target_min OR pgqueue_shows(p.target, x.xid))
     ORDER BY m.id LIMIT (SELECT {most})) m
 ORDER BY x.xid, m.id LIMIT (SELECT {most}))
UNION ALL
(SELECT m.* FROM {source_message} m
 WHERE (m.enqueued_xid, m.id) > (p.from_xid, p.from_id) AND {subscriptions/in_round}
 ORDER BY m.enqueued_xid, m.id LIMIT (SELECT {most}))
