-- Lease what waits behind heads that this reader just leased, as long as nothing in between has
-- to wait: a delay, a message at its last delivery, a lock of somebody else's, a follower that is
-- still out from an earlier batch. Either group by group or in rounds. The heads are fenced and
-- locked, so the line behind them stands still.
WITH head AS MATERIALIZED (
    SELECT d.group_key, array_position(%(ids)s::bigint[], d.id) AS place
    FROM {deferred} d JOIN {group} g
      ON g.queue_id = {queue_id} AND g.group_key = d.group_key AND g.head = d.id
    WHERE d.id = ANY(%(ids)s::bigint[]) AND d.queue_id + 0 = {queue_id}
      AND d.id || ':' || d.read_ct = ANY(%(receipts)s::text[])
      AND (SELECT o.id FROM {deferred} o
           WHERE o.id = ANY(g.followers) AND o.id <> g.head AND o.queue_id + 0 = {queue_id}
           LIMIT 1) IS NULL
    FOR UPDATE SKIP LOCKED
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
    UPDATE {group} g
    SET followers = ARRAY(SELECT l.id FROM leased l WHERE l.group_key = h.group_key)
    FROM head h
    WHERE g.queue_id = {queue_id} AND g.group_key = h.group_key
      AND h.group_key IN (SELECT group_key FROM leased)
)
SELECT l.id, m.body, m.headers, l.enqueued_at, l.priority, l.group_key,
       l.read_ct, l.attempts, l.vt, l.first_read_at
FROM leased l JOIN wanted w ON w.id = l.id CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = l.id AND m.enqueued_at = l.enqueued_at OFFSET 0) m
ORDER BY CASE WHEN %(in_rounds)s THEN w.round END, w.place, w.round
