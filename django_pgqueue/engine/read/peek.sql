-- The messages that a read would find. Locks no row, so it also returns rows that other transactions
-- have locked.
WITH due AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, d.priority, d.group_key, d.read_ct, d.attempts, d.vt,
           d.first_read_at,
           d.group_key IS NULL OR NOT {read/blocked} AS open
    FROM pgqueue_deferred d
    WHERE d.queue_id = {queue_id} AND {places/due}
      AND {read/contains}
    ORDER BY d.vt
    LIMIT (SELECT %(qty)s::bigint)
),
ended AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, l.priority, NULL::text AS group_key, 1, 0, l.vt, l.read_at, true
    FROM (SELECT * FROM pgqueue_lease l
          WHERE l.queue_id = {queue_id} AND {places/due}
          ORDER BY l.vt
          LIMIT (SELECT CASE WHEN %(conditional)s::jsonb IS NULL THEN %(qty)s::bigint END)) l
    CROSS JOIN LATERAL unnest(l.ids, l.enqueued_ats) AS d (id, enqueued_at)
    WHERE {read/contains}
    LIMIT %(qty)s - (SELECT count(*) FROM due)
),
fresh AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, d.priority, d.group_key, 0, 0, d.enqueued_at AS vt,
           NULL::timestamptz, true
    FROM pgqueue_ready d
    WHERE d.queue_id = {queue_id}
      AND {read/contains}
    ORDER BY -d.priority, d.turn
    LIMIT %(qty)s - (SELECT count(*) FROM due) - (SELECT count(*) FROM ended)
),
headless AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, d.priority, d.group_key, d.read_ct, d.attempts,
           d.enqueued_at AS vt, d.first_read_at, true
    FROM ({places/headless}) d
    WHERE d.place = 'ready'
      AND {read/contains}
    ORDER BY d.priority DESC, d.id
    LIMIT %(qty)s - (SELECT count(*) FROM due) - (SELECT count(*) FROM ended)
        - (SELECT count(*) FROM fresh)
),
found AS (
    SELECT *, row_number() OVER () AS place FROM (
        SELECT * FROM due UNION ALL SELECT * FROM ended
        UNION ALL SELECT * FROM fresh UNION ALL SELECT * FROM headless) f
    WHERE open
)
SELECT NULL::text, t.id, t.read_ct, 0, t.enqueued_at, t.priority, t.group_key,
       t.attempts, (extract(epoch FROM t.vt) * 1000000::numeric)::bigint,
       (extract(epoch FROM t.first_read_at) * 1000000::numeric)::bigint{read_columns}
FROM found t {read/bodies}
ORDER BY t.place
