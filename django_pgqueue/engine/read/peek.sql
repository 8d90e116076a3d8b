-- The messages that a read would find. Locks no row, so it also returns rows that other transactions
-- have locked.
WITH due AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, d.priority, d.group_key, d.read_ct, d.attempts, d.vt,
           d.first_read_at,
           d.group_key IS NULL OR NOT {read/blocked} AS open
    FROM pgqueue_deferred d
    WHERE d.queue_id = {queue_id} AND {places/due}
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY d.vt
    LIMIT (SELECT %(qty)s::bigint)
),
ended AS MATERIALIZED (
    SELECT u.id, u.enqueued_at, l.priority, NULL::text AS group_key, 1, 0, l.vt, l.read_at, true
    FROM (SELECT * FROM pgqueue_lease l
          WHERE l.queue_id = {queue_id} AND {places/due}
          ORDER BY l.vt
          LIMIT (SELECT CASE WHEN %(conditional)s::jsonb IS NULL THEN %(qty)s::bigint END)) l
    CROSS JOIN LATERAL unnest(l.ids, l.enqueued_ats) AS u (id, enqueued_at)
    WHERE (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = u.id AND m.body @> %(conditional)s::jsonb))
    LIMIT %(qty)s - (SELECT count(*) FROM due)
),
fresh AS MATERIALIZED (
    SELECT r.id, r.enqueued_at, r.priority, r.group_key, 0, 0, r.enqueued_at AS vt,
           NULL::timestamptz, true
    FROM pgqueue_ready r
    WHERE r.queue_id = {queue_id}
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = r.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY -r.priority, r.turn
    LIMIT %(qty)s - (SELECT count(*) FROM due) - (SELECT count(*) FROM ended)
),
headless AS MATERIALIZED (
    SELECT w.id, w.enqueued_at, w.priority, w.group_key, w.read_ct, w.attempts,
           w.enqueued_at AS vt, w.first_read_at, true
    FROM ({places/headless}) w
    WHERE w.place = 'ready'
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = w.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY w.priority DESC, w.id
    LIMIT %(qty)s - (SELECT count(*) FROM due) - (SELECT count(*) FROM ended)
        - (SELECT count(*) FROM fresh)
),
found AS (
    SELECT *, row_number() OVER () AS place FROM (
        SELECT * FROM due UNION ALL SELECT * FROM ended
        UNION ALL SELECT * FROM fresh UNION ALL SELECT * FROM headless) f
    WHERE open
)
SELECT NULL::text, t.id, t.read_ct, 0, m.body, m.headers, t.enqueued_at, t.priority, t.group_key,
       t.attempts, (extract(epoch FROM t.vt) * 1000000::numeric)::bigint,
       (extract(epoch FROM t.first_read_at) * 1000000::numeric)::bigint, {read/expires_at}
FROM found t {read/bodies}
ORDER BY t.place
