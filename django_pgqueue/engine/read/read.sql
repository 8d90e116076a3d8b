-- Lease up to qty messages: first those that are due again, then new ones by (priority, turn).
--
-- A row with a note is not a delivery but work for the reader. 'exhausted': a due message without
-- deliveries left, to be failed. 'blocked': a due message that is not a head of its group, or whose
-- slot is not free yet (groups/set_back.sql). 'expired': a message that had expired when this read
-- leased it, to be archived (settle/expire.sql). 'recheck': some groups may lack a head. Their next
-- messages may come before the ready ones, so no ready message was leased (groups/promote.sql). An
-- expired batch lease is unfolded: its messages become rows of deferred, and up to qty are leased
-- again.
--
-- In queues with limits (ddl/slots.sql), admit.sql computes how many messages may start,
-- may_start.sql and not_yet.sql test whether a head may start, and admitted.sql and started.sql
-- store which messages started. P1, P2, P6.
WITH {admit}recheck AS MATERIALIZED (
    SELECT FROM pgqueue_recheck
    WHERE queue_id = {queue_id} AND (SELECT %(heed)s::boolean) ORDER BY id LIMIT 1
),
due AS MATERIALIZED (
    SELECT d.ctid, d.id, d.read_ct, d.last_read_at,
           d.read_ct >= (SELECT %(max_deliveries)s::integer) AS exhausted,
           d.group_key IS NOT NULL AND {read/blocked} AS blocked
    FROM pgqueue_deferred d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND {read/matches}
    ORDER BY d.vt
    LIMIT (SELECT {most})
    FOR UPDATE OF d SKIP LOCKED
),
capacity AS MATERIALIZED (
    SELECT (SELECT {most}) - (SELECT count(*) FROM due) AS left
),
ended AS MATERIALIZED (
    -- If there is a condition, takes only leases with a message that matches it.
    SELECT ctid, vt, CASE WHEN {any_body} THEN cardinality(ids) ELSE 1 END AS size
    FROM pgqueue_lease l
    WHERE queue_id = {queue_id} AND vt <= statement_timestamp(){no_leases}
      AND ({any_body} OR (
          SELECT true FROM unnest(l.ids) AS u (id) CROSS JOIN LATERAL (
              SELECT FROM {message} m
              WHERE m.id = u.id AND m.body @> %(conditional)s::jsonb OFFSET 0) m
          LIMIT 1))
    ORDER BY vt
    LIMIT (SELECT CASE WHEN capacity.left = 0 THEN 0 WHEN {any_body} THEN 1 + capacity.left / 16
                       ELSE capacity.left END FROM capacity)
    FOR UPDATE SKIP LOCKED
),
opened AS (
    DELETE FROM pgqueue_lease WHERE ctid = ANY(ARRAY(
        SELECT place FROM (
            SELECT ctid AS place, sum(size) OVER (ORDER BY vt, ctid) - size AS before FROM ended) e
        WHERE before < (SELECT coalesce(capacity.left, before + 1) FROM capacity)))
    RETURNING ids, enqueued_ats, read_at, vt, process_id, priority
),
unfolded AS MATERIALIZED (
    SELECT u.*, u.wanted AND u.place <= coalesce(capacity.left, u.place) AS chosen,
           1 >= (SELECT %(max_deliveries)s::integer) AS exhausted
    FROM capacity, (
        SELECT f.*, count(*) FILTER (WHERE f.wanted) OVER (ORDER BY f.vt, f.id) AS place
        FROM (
            SELECT d.id, d.enqueued_at, o.priority, o.read_at, o.vt, o.process_id,
                   {read/matches} AS wanted
            FROM opened o CROSS JOIN LATERAL unnest(o.ids, o.enqueued_ats) AS d (id, enqueued_at)
        ) f
    ) u
),
fresh AS MATERIALIZED (
    SELECT d.ctid
    FROM pgqueue_ready d
    WHERE d.queue_id = {queue_id}
      AND {read/matches}{may_start}
    ORDER BY -d.priority, d.turn
    LIMIT CASE WHEN EXISTS (SELECT FROM recheck) THEN 0
               ELSE (SELECT capacity.left FROM capacity) - (SELECT count(*) FROM unfolded WHERE chosen) END
    FOR UPDATE OF d SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ctid FROM fresh))
    RETURNING id, enqueued_at, priority, group_key
),
leased AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state, group_key)
    SELECT id, statement_timestamp() + %(vt)s, enqueued_at, statement_timestamp(),
           statement_timestamp(), {queue_id}, 1, %(process_id)s::integer, priority, 'PROCESSING',
           group_key
    FROM gone
    UNION ALL
    SELECT id, CASE WHEN again THEN statement_timestamp() + %(vt)s ELSE vt END, enqueued_at, read_at,
           CASE WHEN again THEN statement_timestamp() ELSE read_at END, {queue_id},
           CASE WHEN again THEN 2 ELSE 1 END,
           CASE WHEN again THEN %(process_id)s::integer ELSE process_id END, priority, 'PROCESSING',
           NULL
    FROM unfolded CROSS JOIN LATERAL (SELECT chosen AND NOT exhausted AS again) a
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at,
              last_read_at
),
again AS (
    UPDATE pgqueue_deferred
    SET vt = statement_timestamp() + %(vt)s,
        read_ct = read_ct + 1,
        state = 'PROCESSING',
        first_read_at = coalesce(first_read_at, statement_timestamp()),
        last_read_at = statement_timestamp(),
        process_id = %(process_id)s::integer
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT exhausted AND NOT blocked))
    RETURNING id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at
),
taken AS (
    SELECT id, enqueued_at, priority, group_key, read_ct, attempts, vt, first_read_at FROM leased
    WHERE last_read_at = statement_timestamp()
    UNION ALL
    SELECT * FROM again
)
SELECT {read/note}, t.id, t.read_ct,
       (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint,
       t.enqueued_at, t.priority, t.group_key, t.attempts,
       (extract(epoch FROM t.vt) * 1000000::numeric)::bigint,
       (extract(epoch FROM t.first_read_at) * 1000000::numeric)::bigint{read_columns}
FROM taken t {read/bodies}
WHERE {leases/unflushed}{admitted}{started}
UNION ALL
SELECT CASE WHEN blocked THEN 'blocked' ELSE 'exhausted' END, id, read_ct,
       (extract(epoch FROM last_read_at) * 1000000::numeric)::bigint,
       NULL, NULL, NULL, NULL, NULL, NULL{no_columns}
FROM due WHERE exhausted OR blocked
UNION ALL
SELECT 'exhausted', id, 1, (extract(epoch FROM read_at) * 1000000::numeric)::bigint,
       NULL, NULL, NULL, NULL, NULL, NULL{no_columns}
FROM unfolded WHERE chosen AND exhausted
UNION ALL
SELECT 'recheck', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL{no_columns}
FROM recheck
