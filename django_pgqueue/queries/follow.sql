-- Lease what waits behind heads that this reader just leased, as long as nothing in between has
-- to wait: a delay, a message at its last delivery, a lock of somebody else's, a follower that is
-- still out from an earlier batch. Either group by group or in rounds. The heads are fenced and
-- locked, so the line behind them stands still.
-- Groups are looked up one by one, and noted by an upsert that never inserts: both must use the
-- index on their key. For a join the planner goes through all groups when it knows too little.
WITH head AS MATERIALIZED (
    SELECT h.place, g.group_key, g.head, g.priority
    FROM unnest(%(ids)s::bigint[], %(receipts)s::text[]) WITH ORDINALITY AS h (id, receipt, place)
    CROSS JOIN LATERAL (
        SELECT d.group_key FROM {deferred} d
        WHERE d.id = h.id AND d.queue_id + 0 = {queue_id} AND d.id || ':' || d.read_ct = h.receipt
        FOR UPDATE SKIP LOCKED) d
    CROSS JOIN LATERAL (
        SELECT g.group_key, g.head, g.priority FROM {group} g
        WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key AND g.head = h.id
          AND (SELECT o.id FROM {deferred} o
               WHERE o.id = ANY(g.followers) AND o.id <> g.head AND o.queue_id + 0 = {queue_id}
               LIMIT 1) IS NULL
        FOR UPDATE SKIP LOCKED) g
),
line AS MATERIALIZED (
    SELECT h.place, w.spot, w.id, row_number() OVER one AS round,
           bool_and((w.vt IS NULL OR w.vt <= statement_timestamp())
                    AND coalesce(w.read_ct < %(max_deliveries)s, true)) OVER one AS open
    FROM head h CROSS JOIN LATERAL (
        SELECT w.ctid AS spot, w.id, w.vt, w.read_ct FROM {waiting} w
        WHERE w.queue_id = {queue_id} AND w.group_key = h.group_key
        ORDER BY w.id LIMIT %(qty)s) w
    WINDOW one AS (PARTITION BY h.place ORDER BY w.id)
),
wanted AS MATERIALIZED (
    SELECT place, round, spot, id FROM line WHERE open
    ORDER BY CASE WHEN %(in_rounds)s THEN round END, place, round
    LIMIT %(qty)s
),
locked AS MATERIALIZED (
    SELECT ctid AS spot FROM {waiting} WHERE ctid = ANY(ARRAY(SELECT spot FROM wanted))
    FOR UPDATE SKIP LOCKED
),
sure AS MATERIALIZED (
    SELECT w.spot, bool_and(l.spot IS NOT NULL) OVER (PARTITION BY w.place ORDER BY w.round) AS mine
    FROM wanted w LEFT JOIN locked l ON l.spot = w.spot
),
taken AS (
    DELETE FROM {waiting} WHERE ctid = ANY(ARRAY(SELECT spot FROM sure WHERE mine))
    RETURNING *
),
leased AS (
    INSERT INTO {deferred} (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                            attempts, worker, priority, state, group_key)
    SELECT id, statement_timestamp() + %(vt)s, enqueued_at,
           coalesce(first_read_at, statement_timestamp()), statement_timestamp(), {queue_id},
           read_ct + 1, attempts, %(worker)s::integer, priority, 'PROCESSING', group_key
    FROM taken
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at
),
noted AS (
    INSERT INTO {group} (queue_id, group_key, head, priority, followers)
    SELECT {queue_id}, h.group_key, h.head, h.priority, array_agg(l.id)
    FROM head h JOIN leased l ON l.group_key = h.group_key
    GROUP BY h.group_key, h.head, h.priority
    ON CONFLICT (queue_id, group_key) DO UPDATE SET followers = excluded.followers
)
SELECT l.id, m.body, m.headers, l.enqueued_at, l.priority, l.group_key,
       l.read_ct, l.attempts, l.vt, l.first_read_at
FROM leased l CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = l.id AND m.enqueued_at = l.enqueued_at OFFSET 0) m
ORDER BY array_position(ARRAY(SELECT id FROM wanted), l.id)
