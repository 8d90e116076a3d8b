-- Part that other statements include: the position of a subscription, and what lies behind it.
--
-- target       the snapshot whose messages this round reads
-- is_foreign   whether the position comes from another system, after a restore: its snapshots mean
--              nothing here
-- from_xid, from_id  the key behind which the transactions of this round begin that were not running
--              when the last round began
SELECT c.*, s.target, pg_snapshot_xmin(s.target)::text::bigint AS target_min,
       pg_snapshot_xmax(s.target)::text::bigint AS target_max,
       greatest(c.after_xid, s.since_max - 1) AS from_xid,
       CASE WHEN c.after_xid < s.since_max THEN 9223372036854775807 ELSE c.after_id END AS from_id,
       s.since_max > pg_snapshot_xmax({snapshot})::text::bigint
           OR {subscriptions/elsewhere} AS is_foreign
FROM ({subscriptions/position}) c
CROSS JOIN LATERAL (SELECT coalesce(c.until, {snapshot}) AS target,
                           pg_snapshot_xmax(c.since)::text::bigint AS since_max OFFSET 0) s
