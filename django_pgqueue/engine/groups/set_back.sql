-- Move followers back to waiting if their lease expired before their head was settled. They keep
-- their counts and times. In a queue with limits, also move due messages to waiting if they hold no
-- slot, or a slot whose free_at is infinity. Delay the other heads until their slot's free_at
-- (ddl/slots.sql). P1.
WITH due AS MATERIALIZED (
    SELECT d.ctid AS place, d.id, d.group_key
    FROM pgqueue_deferred d
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp() AND d.group_key IS NOT NULL
      AND {read/blocked}
    ORDER BY d.vt
    LIMIT (SELECT %(batch)s::bigint)
    FOR UPDATE OF d SKIP LOCKED
),
slotted AS MATERIALIZED (
    SELECT has_slots FROM pgqueue_queue WHERE id = {queue_id}
),
early AS MATERIALIZED (
    SELECT d.place, d.id, g.free_at FROM due d CROSS JOIN LATERAL (
        SELECT g.free_at FROM pgqueue_group g
        WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key AND g.head = d.id OFFSET 0) g
    WHERE g.free_at < 'infinity'  -- else the group is paused or has too many heads
),
put_off AS (
    UPDATE pgqueue_deferred d SET vt = e.free_at FROM early e WHERE d.ctid = e.place
    RETURNING d.id
),
-- Lock the groups, so that no head changes before the followers are back in waiting.
held AS MATERIALIZED (
    SELECT g.group_key, g.head FROM pgqueue_group g
    WHERE g.queue_id = {queue_id} AND NOT (SELECT has_slots FROM slotted)
      AND g.group_key = ANY(ARRAY(SELECT DISTINCT group_key FROM due))
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_deferred
    WHERE ctid = ANY(ARRAY(
        SELECT d.place FROM due d JOIN held h ON h.group_key = d.group_key AND h.head <> d.id
        UNION ALL
        SELECT d.place FROM due d
        WHERE (SELECT has_slots FROM slotted) AND d.id NOT IN (SELECT id FROM early)))
    RETURNING *
),
recheck AS (
    INSERT INTO pgqueue_recheck (id, queue_id, group_key)
    SELECT pgqueue_recheck_id(), {queue_id}, group_key
    FROM (SELECT DISTINCT group_key FROM gone WHERE (SELECT has_slots FROM slotted)) g
),
back AS (
    INSERT INTO pgqueue_waiting (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                                 attempts, priority, group_key, error)
    SELECT id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts, priority,
           group_key, error
    FROM gone
    WHERE {leases/unflushed}
    RETURNING id
)
SELECT id FROM back UNION ALL SELECT id FROM put_off
