-- Part of metrics.sql and metrics_all.sql: how many of the counted messages (r, w, d, l) are not
-- delivered now, by place and reason. Leaves out delayed messages without a group, which the caller
-- adds. Only messages of groups are read again.
CROSS JOIN LATERAL (
    WITH asked AS MATERIALIZED (
        SELECT {of} AS queue_id, false AS in_flight, c.*
        FROM (
            VALUES ('ready', NULL::text, false, 0, false, false, 0::bigint, r.counted),
                   ('due', NULL, false, 1, false, false, 0, d.loose_due + l.due)
            UNION ALL
            SELECT e.* FROM (
                SELECT CASE WHEN {places/due} THEN 'due' ELSE 'delayed' END,
                       CASE WHEN slot_at IS NULL THEN group_key END,
                       {places/not_due}, least(read_ct, 1), slot_at IS NULL, (vt = slot_at) IS TRUE,
                       0::bigint, count(*)
                FROM (SELECT d.*, {reasons/slot_at} AS slot_at
                      FROM (SELECT id, vt, state, read_ct, group_key FROM pgqueue_deferred
                            WHERE queue_id = {of} ORDER BY vt LIMIT (SELECT %(limit)s::bigint)) d
                      WHERE group_key IS NOT NULL AND NOT ({places/in_flight}) OFFSET 0) d
                GROUP BY 1, 2, 3, 4, 5, 6) e
            WHERE d.grouped > 0
            UNION ALL
            SELECT e.* FROM (
                SELECT 'waiting', group_key, {places/not_due} IS TRUE, least(read_ct, 1), true, false,
                       CASE WHEN q.has_slots THEN before ELSE least(before, 1) END, count(*)
                FROM (SELECT group_key, vt, read_ct,
                             row_number() OVER (PARTITION BY group_key ORDER BY id
                                                ROWS UNBOUNDED PRECEDING) - 1 AS before
                      FROM pgqueue_waiting WHERE queue_id = {of}
                      ORDER BY group_key, id LIMIT (SELECT %(limit)s::bigint)) v
                GROUP BY 1, 2, 3, 4, 5, 6, 7) e
            WHERE w.counted > 0
        ) c (place, group_key, not_due, read_ct, needs_slot, at_rate, ahead, number)
        WHERE number > 0
    ),
    {reasons/facts}
    SELECT jsonb_agg(jsonb_build_array(place, reason, number))::text AS found
    FROM (SELECT s.place, {reasons/reason} AS reason, sum(s.number)::bigint AS number
          FROM {reasons/from} GROUP BY 1, 2) n
    WHERE reason IS NOT NULL
      AND (w.counted > 0 OR d.grouped > 0 OR q.paused OR num_nonnulls(q."limit", q.rate) > 0)) b
