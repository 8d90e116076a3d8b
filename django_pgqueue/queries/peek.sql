-- What a read would find, without taking it. Held rows are shown too: nothing is locked.
WITH due AS MATERIALIZED (
    SELECT d.id, d.enqueued_at, d.priority, d.group_key, d.read_ct, d.attempts, d.vt,
           d.first_read_at
    FROM {deferred} d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY d.vt
    LIMIT (SELECT %(qty)s::bigint)
),
fresh AS MATERIALIZED (
    SELECT r.id, r.enqueued_at, r.priority, r.group_key, 0, 0, r.enqueued_at AS vt,
           NULL::timestamptz
    FROM {ready} r
    WHERE r.queue_id = {queue_id}
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = r.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY r.priority DESC, r.id
    LIMIT %(qty)s - (SELECT count(*) FROM due)
),
found AS (
    SELECT *, row_number() OVER () AS place FROM (SELECT * FROM due UNION ALL SELECT * FROM fresh) f
)
SELECT f.id, m.body, m.headers, f.enqueued_at, f.priority, f.group_key,
       f.read_ct, f.attempts, f.vt, f.first_read_at
FROM found f CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = f.id AND m.enqueued_at = f.enqueued_at OFFSET 0) m
ORDER BY f.place
