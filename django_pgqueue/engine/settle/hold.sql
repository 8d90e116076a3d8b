-- Extend leases, and count further deliveries of their messages. Fenced. A follower that was set
-- back to waiting (groups/set_back.sql) is leased again if its head was last delivered by the same
-- read, since no other reader has had the follower then. P1, P3, P4, P5, P6.
WITH spot AS MATERIALIZED (
    SELECT w.place
    FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
        AS r (id, read_ct, read_at)
    CROSS JOIN LATERAL (
        SELECT timestamptz 'epoch' + r.read_at::float8 * interval '1 microsecond' AS moment) at
    CROSS JOIN LATERAL (
        SELECT group_key FROM {message} m WHERE m.id = r.id AND group_key IS NOT NULL OFFSET 0) m
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM pgqueue_waiting w
        WHERE w.queue_id = {queue_id} AND w.group_key = m.group_key AND w.id = r.id
          AND w.read_ct = r.read_ct AND w.last_read_at = at.moment OFFSET 0) w
    CROSS JOIN LATERAL (
        SELECT g.head FROM pgqueue_group g
        WHERE g.queue_id = {queue_id} AND g.group_key = m.group_key AND r.id = ANY(g.followers)
        FOR UPDATE SKIP LOCKED) g
    CROSS JOIN LATERAL (
        SELECT FROM pgqueue_deferred h
        WHERE h.id = g.head AND h.queue_id + 0 = {queue_id} AND h.last_read_at = at.moment
        OFFSET 0) h
),
back AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT place FROM spot)) RETURNING *
),
kept AS (
    UPDATE pgqueue_deferred
    SET vt = statement_timestamp() + %(vt)s::interval, read_ct = read_ct + %(more)s
    WHERE {settle/fence}
      AND state = 'PROCESSING'
    RETURNING id
),
leased AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                            attempts, priority, state, group_key, error)
    SELECT id, statement_timestamp() + %(vt)s::interval, enqueued_at, first_read_at, last_read_at,
           queue_id, read_ct + %(more)s, attempts, priority, 'PROCESSING', group_key,
           error
    FROM back
    RETURNING id
)
SELECT id FROM (SELECT id FROM kept UNION ALL SELECT id FROM leased) held
WHERE {leases/unflushed}
