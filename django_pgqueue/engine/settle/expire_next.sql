-- Archive the expired ones among the next batch of due messages, of ready ones, and of those that wait
-- behind expired heads: after an interruption there may be many, and a read leases few. Locked
-- messages are left to the next read, those without deliveries left to the dead-letter queue.
-- P1, P2, P5.
WITH due AS MATERIALIZED (
    SELECT d.place, d.group_key FROM (
        SELECT ctid AS place, id, enqueued_at, group_key, read_ct FROM pgqueue_deferred
        WHERE queue_id = {queue_id} AND {places/due}
        ORDER BY vt LIMIT (SELECT %(batch)s::bigint)) d
    CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.id = d.id AND m.enqueued_at = d.enqueued_at AND m.{places/expired} OFFSET 0) m
    WHERE d.read_ct < %(max_deliveries)s
),
new AS MATERIALIZED (
    SELECT r.place, r.group_key FROM (
        SELECT ctid AS place, id, enqueued_at, group_key FROM pgqueue_ready
        WHERE queue_id = {queue_id}
        ORDER BY -priority, id LIMIT (SELECT %(batch)s::bigint)) r
    CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.id = r.id AND m.enqueued_at = r.enqueued_at AND m.{places/expired} OFFSET 0) m
),
behind AS MATERIALIZED (
    SELECT b.place FROM (
        SELECT w.* FROM (
            SELECT DISTINCT group_key
            FROM (SELECT group_key FROM due UNION ALL SELECT group_key FROM new) h
            WHERE group_key IS NOT NULL) g
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id, enqueued_at, read_ct FROM pgqueue_waiting
            WHERE queue_id = {queue_id} AND group_key = g.group_key
            ORDER BY id LIMIT (SELECT %(batch)s::bigint)) w
        LIMIT (SELECT %(batch)s::bigint)) b
    CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.id = b.id AND m.enqueued_at = b.enqueued_at AND m.{places/expired} OFFSET 0) m
    WHERE b.read_ct < %(max_deliveries)s
),
held AS (
    DELETE FROM pgqueue_deferred WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_deferred
        WHERE ctid = ANY(ARRAY(SELECT place FROM due)) AND {places/due}
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts, error
),
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT place FROM new))
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT place FROM behind))
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
),
gone AS (
    SELECT * FROM held
    UNION ALL
    SELECT id, enqueued_at, NULL, NULL, 0, 0, NULL FROM unread
    UNION ALL
    SELECT *, NULL FROM queued
)
{settle/expired}
