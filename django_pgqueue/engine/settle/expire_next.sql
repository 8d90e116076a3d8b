-- Archive the expired messages that the next reads would find: after an interruption there may be
-- many, and a read leases few. Looks at a batch of due messages, a batch of ready ones, and a batch
-- of those that wait in their groups. Leaves three kinds to the next read: locked messages,
-- messages without deliveries left, and due ones that are not the head of their group. Takes
-- waiting messages only from groups whose head this statement removes: otherwise two readers could
-- each lock messages of two groups, and wait for each other. P1, P2, P5.
WITH due AS MATERIALIZED (
    SELECT d.place FROM (
        SELECT ctid AS place, id, enqueued_at, group_key, read_ct FROM pgqueue_deferred
        WHERE queue_id = {queue_id} AND {places/due}
        ORDER BY vt LIMIT (SELECT %(batch)s::bigint)) d
    {settle/late}
    WHERE d.read_ct < %(max_deliveries)s
      AND (d.group_key IS NULL OR NOT {read/blocked})
),
new AS MATERIALIZED (
    SELECT d.place FROM (
        SELECT ctid AS place, id, enqueued_at FROM pgqueue_ready
        WHERE queue_id = {queue_id}
        ORDER BY -priority, turn LIMIT (SELECT %(batch)s::bigint)) d
    {settle/late}
),
held AS (
    DELETE FROM pgqueue_deferred WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_deferred
        WHERE ctid = ANY(ARRAY(SELECT place FROM due)) AND {places/due}
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts, error, group_key
),
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT place FROM new))
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, group_key
),
behind AS MATERIALIZED (
    SELECT d.place FROM (
        SELECT w.* FROM (
            SELECT group_key FROM held UNION SELECT group_key FROM unread) g
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id, enqueued_at, read_ct, vt FROM pgqueue_waiting
            WHERE queue_id = {queue_id} AND group_key = g.group_key
            ORDER BY id LIMIT (SELECT %(batch)s::bigint)) w
        LIMIT (SELECT %(batch)s::bigint)) d
    {settle/late}
    WHERE d.read_ct < %(max_deliveries)s AND (d.{places/not_due}) IS NOT TRUE
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT place FROM behind))
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
),
gone AS (
    SELECT id, enqueued_at, first_read_at, last_read_at, read_ct, attempts, error FROM held
    UNION ALL
    SELECT id, enqueued_at, NULL, NULL, 0, 0, NULL FROM unread
    UNION ALL
    SELECT *, NULL FROM queued
)
{settle/expired}
