-- Lease up to qty messages: those that are due again first, then fresh ones by (priority, id).
-- A due message whose deliveries have run out is not leased; it comes back as its receipt.
-- Nor is one of a FIFO group whose head it is not. Three rows may come besides messages. Id 0:
-- there are groups to recheck, whose heads may come before what is ready, so nothing ready was
-- taken. Id -1: there are messages to set back in line; another read after that may find more.
-- Id -2: leases of whole batches have run out, to be unfolded first, and nothing was taken.
-- Rows are taken by ctid: a join could be planned as a hash over the whole table. The limit is
-- hidden from the planner: with a thousand due it could choose to sort them all for the first few.
-- Other values that count for a plan are hidden from it, too: it would plan anew for each of them.
WITH recheck AS MATERIALIZED (
    SELECT FROM {recheck}
    WHERE queue_id = {queue_id} AND (SELECT %(heed)s::boolean) ORDER BY id LIMIT 1
),
ended AS MATERIALIZED (
    SELECT FROM {lease}
    WHERE queue_id = {queue_id} AND vt <= statement_timestamp() AND (SELECT %(heed)s::boolean)
    ORDER BY vt LIMIT 1
),
due AS MATERIALIZED (
    SELECT d.ctid, d.id, d.read_ct,
           coalesce(d.read_ct >= (SELECT %(max_deliveries)s::integer), false) AS exhausted,
           d.group_key IS NOT NULL AND d.id IS DISTINCT FROM (
               SELECT g.head FROM {group} g
               WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key) AS blocked
    FROM {deferred} d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND ({any_body} OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY d.vt
    LIMIT (SELECT CASE WHEN EXISTS (SELECT FROM ended) THEN 0 ELSE %(qty)s::bigint END)
    FOR UPDATE OF d SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT r.ctid
    FROM {ready} r
    WHERE r.queue_id = {queue_id}
      AND ({any_body} OR EXISTS (
          SELECT FROM {message} m WHERE m.id = r.id AND m.body @> %(conditional)s::jsonb))
    ORDER BY -r.priority, r.id
    LIMIT CASE WHEN EXISTS (SELECT FROM recheck) OR EXISTS (SELECT FROM ended) THEN 0
               ELSE %(qty)s - (SELECT count(*) FROM due) END
    FOR UPDATE OF r SKIP LOCKED
),
gone AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM fresh))
    RETURNING id, enqueued_at, priority, group_key
),
leased AS (
    INSERT INTO {deferred} (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, worker, priority, state, group_key)
    SELECT id, statement_timestamp() + %(vt)s, enqueued_at, statement_timestamp(),
           statement_timestamp(), {queue_id}, 1, %(worker)s::integer, priority, 'PROCESSING',
           group_key
    FROM gone
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
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT exhausted AND NOT blocked))
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at
),
taken AS (
    SELECT * FROM leased UNION ALL SELECT * FROM again
)
SELECT t.id, m.body, m.headers, t.enqueued_at, t.priority, t.group_key,
       t.read_ct, t.attempts, t.vt, t.first_read_at
FROM taken t {bodies}
UNION ALL
SELECT CASE WHEN blocked THEN -1 ELSE id END, NULL, NULL, NULL, NULL, NULL, read_ct, NULL, NULL, NULL
FROM due WHERE exhausted OR blocked
UNION ALL
SELECT 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM recheck
UNION ALL
SELECT -2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM ended
