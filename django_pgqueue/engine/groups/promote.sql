-- Process rechecks: give a head to each group that lacks one. Never waits for a row: a locked group
-- keeps its recheck. docs/groups.md says why this is safe. Skips the rechecks up to the id in the
-- parameter rechecked (read/positions.py). P1, P7.
--
-- Two readers that insert the row of the same group would wait for each other. So a statement that
-- is a transaction of its own tries to take one lock for all groups of the queue. Statements in
-- longer transactions share that lock, for which they may wait briefly, and try to take a lock for
-- each group.
WITH mode AS MATERIALIZED (
    SELECT CASE WHEN %(alone)s
                THEN pg_try_advisory_xact_lock(hashtextextended('pgqueue.promote', {queue_id}))
                ELSE pg_advisory_xact_lock_shared(
                    hashtextextended('pgqueue.promote', {queue_id})) IS NULL
           END AS exclusive
),
slotted AS MATERIALIZED (
    SELECT has_slots FROM pgqueue_queue WHERE id = {queue_id}
),
marks AS MATERIALIZED (
    SELECT ctid, id, group_key FROM pgqueue_recheck
    WHERE queue_id = {queue_id} AND id > (SELECT %(rechecked)s::bigint)
    ORDER BY id
    LIMIT (SELECT CASE WHEN %(alone)s AND NOT exclusive THEN %(batch)s / 10 ELSE %(batch)s END
           FROM mode)
    FOR UPDATE SKIP LOCKED
),
-- Groups of a queue with limits (ddl/slots.sql). This is the only lock of a group without slots.
tried AS MATERIALIZED (
    SELECT group_key FROM (
        SELECT group_key, min(place) AS place FROM (
            SELECT group_key, row_number() OVER () AS place FROM marks) m
        WHERE (SELECT has_slots FROM slotted)
        GROUP BY group_key ORDER BY place LIMIT %(groups)s) a
    WHERE pg_try_advisory_xact_lock(hashtextextended(group_key, {queue_id}))
),
unfilled AS MATERIALIZED (
    SELECT unnest(f.groups) AS group_key
    FROM (SELECT array_agg({queue_id}) AS queue_ids, array_agg(group_key) AS groups FROM tried) t
    CROSS JOIN LATERAL pgqueue_fill_groups(t.queue_ids, t.groups, true) f
    WHERE t.groups IS NOT NULL
),
asked AS MATERIALIZED (
    SELECT DISTINCT group_key FROM marks WHERE NOT (SELECT has_slots FROM slotted)
),
-- Groups with a row in pgqueue_group. While the row is locked, its head does not change. The next
-- read processes rows that changed after this statement began.
known AS MATERIALIZED (
    SELECT a.group_key, g.place
    FROM asked a CROSS JOIN LATERAL (
        SELECT g.ctid AS place FROM pgqueue_group g
        WHERE g.queue_id = {queue_id} AND g.group_key = a.group_key
        ORDER BY g.slot DESC LIMIT 1) g
),
locked AS MATERIALIZED (
    SELECT g.ctid AS place, g.group_key, g.head, g.priority, g.turn FROM pgqueue_group g
    WHERE g.ctid = ANY(ARRAY(SELECT place FROM known)) AND %(alone)s
    FOR UPDATE SKIP LOCKED
),
looked_at AS MATERIALIZED (
    SELECT l.place, l.group_key,
           coalesce((SELECT true FROM pgqueue_deferred d
                     WHERE d.id = l.head AND d.queue_id + 0 = {queue_id} LIMIT 1),
                    (SELECT true FROM pgqueue_ready r WHERE r.queue_id = {queue_id}
                     AND -r.priority = -l.priority AND r.turn = l.turn AND r.id = l.head LIMIT 1),
                    false) AS alive
    FROM locked l WHERE (l.place IN (SELECT place FROM known)) IS TRUE
),
replaced AS MATERIALIZED (
    SELECT pgqueue_next_heads(array_agg(place)) AS heads FROM looked_at WHERE NOT alive
    HAVING count(*) > 0
),
-- Groups without a row in pgqueue_group: their first waiting message becomes the head.
unknown AS MATERIALIZED (
    SELECT a.group_key, w.place, w.id
    FROM asked a LEFT JOIN LATERAL (
        SELECT w.ctid AS place, w.id FROM pgqueue_waiting w
        WHERE w.queue_id = {queue_id} AND w.group_key = a.group_key
        ORDER BY w.id LIMIT 1) w ON true
    WHERE (a.group_key NOT IN (SELECT group_key FROM known)) IS TRUE
),
-- The locks are tried one by one, until enough groups are locked.
mine AS MATERIALIZED (
    SELECT place FROM (SELECT * FROM unknown WHERE place IS NOT NULL ORDER BY id OFFSET 0) u
    WHERE (SELECT exclusive FROM mode)
       OR pg_try_advisory_xact_lock(hashtextextended(group_key, {queue_id}))
    LIMIT %(groups)s
),
first AS MATERIALIZED (
    SELECT ctid AS place, id, priority, group_key FROM pgqueue_waiting
    WHERE ctid = ANY(ARRAY(SELECT place FROM mine))
    FOR UPDATE SKIP LOCKED
),
begun AS (
    INSERT INTO pgqueue_group (queue_id, group_key, head, priority, turn)
    SELECT {queue_id}, group_key, id, priority, nextval('pgqueue_message_id_seq')
    FROM (SELECT * FROM first ORDER BY id) f
    ON CONFLICT DO NOTHING
    RETURNING group_key, head, turn
),
moved AS (
    DELETE FROM pgqueue_waiting
    WHERE ctid = ANY(ARRAY(
        SELECT place FROM first WHERE (id IN (SELECT head FROM begun)) IS TRUE))
    RETURNING *
),
-- As in ddl/become_heads.sql.
readable AS (
    INSERT INTO pgqueue_ready (id, turn, enqueued_at, queue_id, priority, group_key)
    SELECT m.id, b.turn, m.enqueued_at, m.queue_id, m.priority, m.group_key
    FROM moved m JOIN begun b ON b.group_key = m.group_key
    WHERE read_ct = 0 AND (vt IS NULL OR vt <= statement_timestamp())
),
not_yet AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                            attempts, priority, state, group_key, error)
    SELECT id, greatest(vt, statement_timestamp()), enqueued_at, first_read_at, last_read_at,
           queue_id, read_ct, attempts, priority,
           CASE read_ct WHEN 0 THEN 'SCHEDULED' ELSE 'RETRYABLE' END, group_key, error
    FROM moved
    WHERE read_ct > 0 OR vt > statement_timestamp()
),
settled AS MATERIALIZED (
    SELECT group_key FROM moved
    UNION ALL SELECT group_key FROM looked_at
    UNION ALL SELECT group_key FROM tried
              WHERE (group_key IN (SELECT group_key FROM unfilled)) IS NOT TRUE
    UNION ALL SELECT group_key FROM unknown WHERE place IS NULL
),
done AS (
    DELETE FROM pgqueue_recheck
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM marks WHERE (group_key IN (SELECT group_key FROM settled)) IS TRUE))
    RETURNING 1
)
-- heads: those that are due
SELECT (SELECT count(*) FROM moved WHERE (vt > statement_timestamp()) IS NOT TRUE)
           + coalesce((SELECT heads FROM replaced), 0) AS heads,
       (SELECT count(*) FROM done) AS rechecks,
       (SELECT coalesce(min(id) FILTER (
                   WHERE (group_key IN (SELECT group_key FROM settled)) IS NOT TRUE) - 1, max(id))
        FROM marks) AS rechecked
WHERE {leases/unflushed}
