-- Process rechecks: give a head to each group that lacks one. Never waits for a row: a locked group
-- keeps its recheck. tests/protocol/README.md says why this is safe. P1, P7.

-- 1. The lock. Two readers that insert the row of the same group would wait for each other. So a
-- statement that is a transaction of its own (alone) tries to take one lock for all groups of the
-- queue. Statements in longer transactions share that lock, for which they may wait briefly, and try
-- to take a lock for each group. They keep locked only the groups to which they give a head (limited
-- by the parameter groups), and the rechecks that they delete.
WITH mode AS MATERIALIZED (
    SELECT CASE WHEN %(alone)s
                THEN pg_try_advisory_xact_lock(hashtextextended('pgqueue.promote', {queue_id}))
                ELSE pg_advisory_xact_lock_shared(
                    hashtextextended('pgqueue.promote', {queue_id})) IS NULL
           END AS exclusive
),
-- 2. The rechecks and the groups that they name (asked). Skips those of the groups in the parameter
-- passed, and those up to the id in rechecked (read/positions.py). Readers that are alone lock their
-- rechecks, and so share the work.
most AS MATERIALIZED (
    SELECT CASE WHEN %(alone)s AND NOT exclusive THEN %(batch)s / 10 ELSE %(batch)s END AS marks
    FROM mode
),
own AS MATERIALIZED (
    SELECT ctid, id, group_key FROM pgqueue_recheck
    WHERE queue_id = {queue_id} AND id > (SELECT %(rechecked)s::bigint)
      AND (group_key IN (SELECT unnest(%(passed)s::text[]))) IS NOT TRUE
    ORDER BY id
    LIMIT (SELECT CASE WHEN %(alone)s THEN marks ELSE 0 END FROM most)
    FOR UPDATE SKIP LOCKED
),
marks AS MATERIALIZED (
    SELECT ctid, id, group_key FROM own
    UNION ALL
    (SELECT ctid, id, group_key FROM pgqueue_recheck
     WHERE queue_id = {queue_id} AND id > (SELECT %(rechecked)s::bigint)
       AND (group_key IN (SELECT unnest(%(passed)s::text[]))) IS NOT TRUE
     ORDER BY id
     LIMIT (SELECT CASE WHEN %(alone)s THEN 0 ELSE marks END FROM most))
),
asked AS MATERIALIZED (
    SELECT group_key, min(id) AS id FROM marks GROUP BY group_key
),
-- 3. Groups of a queue with limits: their free slots are filled (ddl/slots.sql). The advisory lock is
-- the only one of a group without slots; pgqueue_fill_some takes it in a longer transaction.
slotted AS MATERIALIZED (
    SELECT has_slots FROM pgqueue_queue WHERE id = {queue_id}
),
tried AS MATERIALIZED (
    SELECT group_key FROM asked
    WHERE (SELECT has_slots FROM slotted) AND %(alone)s
      AND pg_try_advisory_xact_lock(hashtextextended(group_key, {queue_id}))
),
unfilled AS MATERIALIZED (
    SELECT unnest(f.groups) AS group_key
    FROM (SELECT array_agg({queue_id}) AS queue_ids, array_agg(group_key) AS groups FROM tried) t
    CROSS JOIN LATERAL pgqueue_fill_groups(t.queue_ids, t.groups, true) f
    WHERE t.groups IS NOT NULL
),
filled AS MATERIALIZED (
    SELECT f.heads, f.full_groups
    FROM (SELECT array_agg(group_key ORDER BY id) AS groups FROM asked
          WHERE (SELECT has_slots FROM slotted) AND NOT %(alone)s) a
    CROSS JOIN LATERAL pgqueue_fill_some({queue_id}, a.groups, %(groups)s) f
    WHERE a.groups IS NOT NULL
),
-- 4. Other groups with a row in pgqueue_group: the next head, if the head is gone (ddl/groups.sql).
-- While the row is locked, its head does not change. The next read processes rows that changed after
-- this statement began: these are in locked, but not in looked_at. A longer transaction does not keep
-- groups locked that have a head (headed).
known AS MATERIALIZED (
    SELECT a.group_key, a.id, g.place,
           coalesce((SELECT true FROM pgqueue_deferred d
                     WHERE d.id = g.head AND d.queue_id + 0 = {queue_id} LIMIT 1),
                    (SELECT true FROM pgqueue_ready r WHERE r.queue_id = {queue_id}
                     AND -r.priority = -g.priority AND r.turn = g.turn AND r.id = g.head LIMIT 1),
                    false) AS alive
    FROM asked a CROSS JOIN LATERAL (
        SELECT g.ctid AS place, g.head, g.priority, g.turn FROM pgqueue_group g
        WHERE g.queue_id = {queue_id} AND g.group_key = a.group_key
        ORDER BY g.slot DESC LIMIT 1) g
    WHERE NOT (SELECT has_slots FROM slotted)
),
headed AS MATERIALIZED (
    SELECT unnest(pgqueue_alive_groups(array_agg(place))) AS group_key FROM known
    WHERE alive AND NOT %(alone)s
    HAVING count(*) > 0
),
headless AS MATERIALIZED (
    SELECT group_key, place FROM known WHERE NOT alive ORDER BY id
    LIMIT (SELECT %(groups)s::bigint)
),
locked AS MATERIALIZED (
    SELECT g.ctid AS place, g.group_key FROM pgqueue_group g
    WHERE g.ctid = ANY(ARRAY(SELECT place FROM headless
                             UNION ALL SELECT place FROM known WHERE alive AND %(alone)s))
    FOR UPDATE SKIP LOCKED
),
looked_at AS MATERIALIZED (
    SELECT place, group_key FROM locked WHERE (place IN (SELECT place FROM known)) IS TRUE
),
replaced AS MATERIALIZED (
    SELECT f.heads, f.places
    FROM (SELECT array_agg(place) AS places FROM looked_at
          WHERE (place IN (SELECT place FROM headless)) IS TRUE) l
    CROSS JOIN LATERAL pgqueue_next_heads(l.places) f
    WHERE l.places IS NOT NULL
),
-- 5. Groups without a row in pgqueue_group: their first waiting message becomes the head.
unknown AS MATERIALIZED (
    SELECT a.group_key, w.place, w.id
    FROM asked a LEFT JOIN LATERAL (
        SELECT w.ctid AS place, w.id FROM pgqueue_waiting w
        WHERE w.queue_id = {queue_id} AND w.group_key = a.group_key
        ORDER BY w.id LIMIT 1) w ON true
    WHERE (a.group_key NOT IN (SELECT group_key FROM known)) IS TRUE
      AND NOT (SELECT has_slots FROM slotted)
),
-- The locks are tried one by one, until enough groups are locked.
mine AS MATERIALIZED (
    SELECT group_key, place
    FROM (SELECT * FROM unknown WHERE place IS NOT NULL ORDER BY id OFFSET 0) u
    WHERE (SELECT exclusive FROM mode)
       OR pg_try_advisory_xact_lock(hashtextextended(group_key, {queue_id}))
    LIMIT %(groups)s - (SELECT count(*) FROM headless)
),
begun AS MATERIALIZED (
    SELECT f.groups, f.heads
    FROM (SELECT array_agg(place) AS places FROM mine) m
    CROSS JOIN LATERAL pgqueue_first_heads({queue_id}, m.places, statement_timestamp()) f
    WHERE m.places IS NOT NULL
),
-- 6. The rechecks of groups that need no other look.
settled AS MATERIALIZED (
    SELECT unnest(groups) AS group_key FROM begun
    UNION ALL SELECT group_key FROM headed
    UNION ALL SELECT group_key FROM looked_at
              WHERE (place = ANY((SELECT places FROM replaced)::tid[])) IS NOT TRUE
    UNION ALL SELECT group_key FROM tried
              WHERE (group_key IN (SELECT group_key FROM unfilled)) IS NOT TRUE
    UNION ALL SELECT unnest(full_groups) FROM filled
    UNION ALL SELECT group_key FROM unknown WHERE place IS NULL
),
done AS (
    DELETE FROM pgqueue_recheck
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_recheck WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM marks WHERE (group_key IN (SELECT group_key FROM settled)) IS TRUE))
        FOR UPDATE SKIP LOCKED))
    RETURNING ctid
),
-- 7. The result. found: whether this statement gave heads to as many groups as it may, and so perhaps
-- did not look at all of them.
enough AS MATERIALIZED (
    SELECT (SELECT count(*) FROM headless) + (SELECT count(*) FROM mine)
               + coalesce((SELECT heads FROM filled), 0) >= %(groups)s AS found
)
-- heads: new heads that are due; in a queue with limits, groups whose slots are filled
-- rechecked: the id up to which all rechecks are processed, but for new ones with the highest id
-- more: whether other groups may lack a head
-- passed: the groups that were looked at, and whose rechecks remain
SELECT coalesce((SELECT heads FROM begun), 0) + coalesce((SELECT heads FROM replaced), 0)
           + coalesce((SELECT heads FROM filled), 0)
           + (SELECT count(*) FROM tried
              WHERE (group_key IN (SELECT group_key FROM unfilled)) IS NOT TRUE) AS heads,
       (SELECT coalesce(min(id) FILTER (
                   WHERE (group_key IN (SELECT group_key FROM settled)) IS NOT TRUE), max(id)) - 1
        FROM marks) AS rechecked,
       (SELECT found FROM enough)
           OR (SELECT count(*) FROM marks) = (SELECT marks FROM most) AS more,
       ARRAY(SELECT DISTINCT group_key FROM marks
             WHERE (ctid IN (SELECT ctid FROM done)) IS NOT TRUE
               AND (NOT (SELECT found FROM enough)
                    OR (group_key IN (SELECT group_key FROM settled)) IS TRUE
                    OR (group_key IN (SELECT group_key FROM headless)) IS TRUE
                    OR (group_key IN (SELECT group_key FROM mine)) IS TRUE)) AS passed
WHERE {leases/unflushed}
