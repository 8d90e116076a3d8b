-- Lease followers: messages that wait behind heads which this reader has just leased, group by
-- group or in rounds. Stops in each group at the first message that cannot be leased: one that is
-- delayed, has no deliveries left, or is locked by another transaction. Skips a group if a follower
-- of an earlier batch is still in deferred. In a queue with limits, leases no followers. The heads
-- are fenced and locked, so no other process changes the order behind them. A follower has the
-- last_read_at of its head, so that its receipt becomes invalid when the head is delivered again
-- (settle/fence.sql). Groups are looked up one by one (P5), and updated by an upsert that never
-- inserts: the look-up and the update both use the index on the key.
WITH head AS MATERIALIZED (
    SELECT h.place, g.group_key, g.head, g.priority, d.last_read_at
    FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
        WITH ORDINALITY AS h (id, read_ct, read_at, place)
    CROSS JOIN LATERAL (
        SELECT d.group_key, d.last_read_at FROM pgqueue_deferred d
        WHERE d.id = h.id AND d.queue_id + 0 = {queue_id} AND d.read_ct = h.read_ct
          AND NOT (SELECT has_slots OR "limit" IS NOT NULL OR rate IS NOT NULL
                   FROM pgqueue_queue WHERE id = {queue_id})
          AND d.last_read_at = timestamptz 'epoch' + h.read_at::float8 * interval '1 microsecond'
        FOR UPDATE SKIP LOCKED) d
    CROSS JOIN LATERAL (
        SELECT g.group_key, g.head, g.priority FROM pgqueue_group g
        WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key AND g.head = h.id
          AND (SELECT o.id FROM pgqueue_deferred o
               WHERE o.id = ANY(g.followers) AND o.id <> g.head AND o.queue_id + 0 = {queue_id}
               LIMIT 1) IS NULL
        FOR UPDATE SKIP LOCKED) g
),
line AS MATERIALIZED (
    SELECT h.place, w.spot, w.id, row_number() OVER one AS round,
           bool_and((w.vt IS NULL OR w.vt <= statement_timestamp())
                    AND coalesce(w.read_ct < %(max_deliveries)s, true)) OVER one AS open
    FROM head h CROSS JOIN LATERAL (
        SELECT w.ctid AS spot, w.id, w.vt, w.read_ct FROM pgqueue_waiting w
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
    SELECT ctid AS spot FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT spot FROM wanted))
    FOR UPDATE SKIP LOCKED
),
sure AS MATERIALIZED (
    SELECT w.spot, bool_and(l.spot IS NOT NULL) OVER (PARTITION BY w.place ORDER BY w.round) AS mine
    FROM wanted w LEFT JOIN locked l ON l.spot = w.spot
),
taken AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT spot FROM sure WHERE mine))
    RETURNING *
),
leased AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                            attempts, process_id, priority, state, group_key, error)
    SELECT t.id, statement_timestamp() + %(vt)s, t.enqueued_at,
           coalesce(t.first_read_at, h.last_read_at), h.last_read_at, {queue_id},
           t.read_ct + 1, t.attempts, %(process_id)s::integer, t.priority, 'PROCESSING', t.group_key,
           t.error
    FROM taken t JOIN head h ON h.group_key = t.group_key
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at,
              last_read_at
),
noted AS (
    INSERT INTO pgqueue_group (queue_id, group_key, head, priority, turn, followers)
    SELECT {queue_id}, h.group_key, h.head, h.priority, h.head, array_agg(l.id)
    FROM head h JOIN leased l ON l.group_key = h.group_key
    GROUP BY h.group_key, h.head, h.priority
    ON CONFLICT (queue_id, group_key, slot) DO UPDATE SET followers = excluded.followers
)
SELECT {read/note}, t.id, t.read_ct, (extract(epoch FROM t.last_read_at) * 1000000::numeric)::bigint,
       t.enqueued_at, t.priority, t.group_key, t.attempts,
       (extract(epoch FROM t.vt) * 1000000::numeric)::bigint,
       (extract(epoch FROM t.first_read_at) * 1000000::numeric)::bigint{read_columns}
FROM leased t {read/bodies}
WHERE {leases/unflushed}
ORDER BY array_position(ARRAY(SELECT id FROM wanted), t.id)
