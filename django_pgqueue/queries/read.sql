-- Lease up to qty messages: those that are due again first, then fresh ones by (priority, id).
-- A due message whose deliveries have run out is not leased; it comes back as its receipt.
-- Rows are taken by ctid: a join could be planned as a hash over the whole table. The limit is
-- hidden from the planner: with a thousand due it could choose to sort them all for the first few.
WITH due AS MATERIALIZED (
    SELECT d.ctid, d.id, d.read_ct, coalesce(d.read_ct >= %(max_deliveries)s, false) AS exhausted
    FROM {deferred} d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY d.vt
    LIMIT (SELECT %(qty)s::bigint)
    FOR UPDATE OF d SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT r.ctid
    FROM {ready} r
    WHERE r.queue_id = {queue_id}
      AND (%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = r.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY r.priority DESC, r.id
    LIMIT %(qty)s - (SELECT count(*) FROM due)
    FOR UPDATE OF r SKIP LOCKED
),
taken AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM fresh))
    RETURNING id, enqueued_at, priority, group_key
),
leased AS (
    INSERT INTO {deferred} (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, worker, priority, state, group_key)
    SELECT id, statement_timestamp() + %(vt)s, enqueued_at, statement_timestamp(),
           statement_timestamp(), {queue_id}, 1, %(worker)s::integer, priority, 'PROCESSING',
           group_key
    FROM taken
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at
),
again AS (
    UPDATE {deferred}
    SET vt = statement_timestamp() + %(vt)s,
        read_ct = read_ct + 1,
        state = 'PROCESSING',
        first_read_at = coalesce(first_read_at, statement_timestamp()),
        last_read_at = statement_timestamp(),
        worker = %(worker)s::integer
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT exhausted))
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at
),
lease AS (
    SELECT * FROM leased UNION ALL SELECT * FROM again
)
SELECT l.id, m.body, m.headers, l.enqueued_at, l.priority, l.group_key,
       l.read_ct, l.attempts, l.vt, l.first_read_at
FROM lease l CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = l.id AND m.enqueued_at = l.enqueued_at OFFSET 0) m
UNION ALL
SELECT id, NULL, NULL, NULL, NULL, NULL, read_ct, NULL, NULL, NULL
FROM due WHERE exhausted
ORDER BY priority DESC, id
