-- Chooses the first and the next head of FIFO groups, in queues without slots (slots.sql).
--
-- A statement that removes heads (an ack, a dead letter, an operator's DELETE) chooses all their
-- successors in the same transaction. It never waits: for a group that another transaction has
-- locked, or whose next message it has locked, it inserts a recheck, which the next reader processes
-- after both transactions have ended.

-- Returns the id of a recheck that belongs to no send: after those of all messages that were sent.
CREATE FUNCTION {schema}.pgqueue_recheck_id() RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce(pg_sequence_last_value('{schema}.pgqueue_message_id_seq'), 0) + 1
$$;

-- Chooses the new heads of groups whose heads are gone. Takes the ctids of the groups' rows, which
-- the caller has locked. Returns how many waiting messages became heads, and the rows of groups
-- whose next message another transaction has locked or just removed: these still lack a head. The
-- statement sees everything committed before it.
CREATE FUNCTION {schema}.pgqueue_next_heads(INOUT places tid[], OUT heads integer)
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    queue_ids integer[];
BEGIN
    -- Followers that were leased in one batch with the old head are still in flight. The first of
    -- them becomes the head, unless an earlier message was put back into waiting. Followers are
    -- matched by queue too: a dead-lettered follower keeps its id in another queue.
    WITH line AS MATERIALIZED (
        SELECT g.ctid AS place, g.queue_id, g.group_key, g.followers, f.id, f.priority
        FROM {schema}.pgqueue_group g LEFT JOIN LATERAL (
            SELECT d.id, d.priority FROM {schema}.pgqueue_deferred d
            WHERE g.followers IS NOT NULL AND d.id = ANY(g.followers)
              AND d.queue_id + 0 = g.queue_id
            ORDER BY d.id LIMIT 1) f ON true
        WHERE g.ctid = ANY(places)
    ),
    next AS MATERIALIZED (
        SELECT l.*, w.spot FROM line l LEFT JOIN LATERAL (
            SELECT w.ctid AS spot FROM {schema}.pgqueue_waiting w
            WHERE w.queue_id = l.queue_id AND w.group_key = l.group_key
              AND w.id < coalesce(l.id, 9223372036854775807)
            ORDER BY w.id LIMIT 1) w ON true
    ),
    held AS MATERIALIZED (
        SELECT ctid AS spot FROM {schema}.pgqueue_waiting
        WHERE ctid = ANY(ARRAY(SELECT spot FROM next WHERE spot IS NOT NULL))
        FOR UPDATE SKIP LOCKED
    ),
    chosen AS MATERIALIZED (
        SELECT * FROM next WHERE (spot IN (SELECT spot FROM held)) IS TRUE
    ),
    moved AS (
        DELETE FROM {schema}.pgqueue_waiting w USING chosen n WHERE w.ctid = n.spot
        RETURNING w.*, n.place, CASE WHEN n.id IS NOT NULL THEN n.followers END AS followers,
            greatest(w.vt, statement_timestamp()) AS due_at,
            {next_turn} AS turn
    ),
    {become_heads},
    headed AS (
        UPDATE {schema}.pgqueue_group g
        SET head = n.id, priority = n.priority, followers = n.followers, turn = n.turn
        FROM (SELECT place, id, priority, followers, turn FROM moved
              UNION ALL
              SELECT place, id, priority, followers, id FROM next
              WHERE spot IS NULL AND id IS NOT NULL) n
        WHERE g.ctid = n.place
    ),
    ended AS (
        DELETE FROM {schema}.pgqueue_group
        WHERE ctid = ANY(ARRAY(SELECT place FROM next WHERE spot IS NULL AND id IS NULL))
    )
    SELECT (SELECT array_agg(queue_id) FROM moved), (SELECT count(*) FROM moved),
           (SELECT array_agg(place) FROM next
            WHERE (spot IN (SELECT spot FROM held)) IS FALSE)
    INTO queue_ids, heads, places;

    PERFORM {schema}.pgqueue_wake(id) FROM (SELECT DISTINCT unnest(queue_ids) AS id) woken;
END
$$;

-- Chooses the first heads of groups without a row, and so without slots. Takes the ctids of their
-- first waiting messages; the caller has locked the groups (engine/groups/promote.sql). A head is
-- due at the time in clock or before: for a PGMQ function that polls, it is later than the statement.
-- Returns the groups that got a head, and how many of these heads are due. Leaves out a message that
-- another transaction has locked, and a group that has a row by now.
CREATE FUNCTION {schema}.pgqueue_first_heads(
    queue integer, places tid[], clock timestamptz, OUT groups text[], OUT heads integer
) LANGUAGE plpgsql {pinned} AS $$
BEGIN
    WITH first AS MATERIALIZED (
        SELECT ctid AS spot, id, priority, group_key FROM {schema}.pgqueue_waiting
        WHERE ctid = ANY(places)
        FOR UPDATE SKIP LOCKED
    ),
    begun AS (
        INSERT INTO {schema}.pgqueue_group (queue_id, group_key, head, priority, turn)
        SELECT queue, group_key, id, priority, {next_turn}
        FROM (SELECT * FROM first ORDER BY id) f
        ON CONFLICT DO NOTHING
        RETURNING group_key, turn
    ),
    moved AS (
        DELETE FROM {schema}.pgqueue_waiting w USING (
            SELECT f.spot, b.turn FROM first f JOIN begun b ON b.group_key = f.group_key) n
        WHERE w.ctid = n.spot
        RETURNING w.*, n.turn,
            CASE WHEN w.vt > clock THEN w.vt ELSE statement_timestamp() END AS due_at
    ),
    {become_heads}
    SELECT array_agg(group_key), count(*) FILTER (WHERE due_at <= statement_timestamp())
    INTO groups, heads
    FROM moved;
END
$$;

-- Returns those of some groups whose head is in ready or deferred, and whose row no other
-- transaction has locked. Takes the ctids of the rows. Locks them while it looks, so a statement
-- that removes the head later sees everything that was committed before. Rolls its locks back: a
-- transaction that stays open must not keep them from the acks of these heads. PostgreSQL does so
-- only for a block that an error ends. Here and in pgqueue_fill_some the error is PQ001.
CREATE FUNCTION {schema}.pgqueue_alive_groups(places tid[]) RETURNS text[]
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    groups text[];
BEGIN
    places := ARRAY(SELECT ctid FROM {schema}.pgqueue_group WHERE ctid = ANY(places)
                    FOR UPDATE SKIP LOCKED);
    groups := ARRAY(
        SELECT g.group_key FROM {schema}.pgqueue_group g
        WHERE g.ctid = ANY(places)
          AND ((SELECT true FROM {schema}.pgqueue_deferred d
                WHERE d.id = g.head AND d.queue_id + 0 = g.queue_id LIMIT 1)
            OR (SELECT true FROM {schema}.pgqueue_ready r
                WHERE r.queue_id = g.queue_id AND -r.priority = -g.priority AND r.turn = g.turn
                  AND r.id = g.head LIMIT 1)));
    RAISE SQLSTATE 'PQ001';
EXCEPTION WHEN SQLSTATE 'PQ001' THEN
    RETURN groups;
END
$$;

-- Chooses the next heads after messages of groups were deleted from ready or deferred. If the
-- deleted message is a follower in a batch, the group's row stays locked until the commit. A
-- concurrent statement that removes the head then inserts a recheck; it does not choose this
-- message.
CREATE FUNCTION {schema}.pgqueue_go_on(
    from_ready boolean, ids bigint[], queue_ids integer[], groups text[]
) RETURNS void
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    blind boolean := current_setting('transaction_isolation') <> 'read committed';
    places tid[];
BEGIN
    PERFORM FROM {schema}.pgqueue_queue WHERE id = ANY(queue_ids) AND has_slots;
    IF FOUND THEN
        PERFORM {schema}.pgqueue_slots_freed(from_ready, ids, queue_ids, groups);
        RETURN;
    END IF;

    -- Excludes heads that a read is moving from ready to deferred. Locked groups need a recheck,
    -- since the lock's holder may not see this deletion. If this transaction keeps its first
    -- snapshot, all groups need one, since it may miss newer messages.
    SELECT array_agg(g.place) FILTER (WHERE g.head = m.id),
           array_agg(m.id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.queue_id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.group_key) FILTER (WHERE blind OR g.place IS NULL)
    INTO places, ids, queue_ids, groups
    FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) LEFT JOIN LATERAL (
        SELECT g.ctid AS place, g.head FROM {schema}.pgqueue_group g
        WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key
        ORDER BY g.slot DESC LIMIT 1  -- backward, as in engine/settle/fence.sql
        FOR UPDATE SKIP LOCKED) g ON true
    WHERE NOT from_ready
       OR (SELECT true FROM {schema}.pgqueue_deferred d
           WHERE d.id = m.id AND d.queue_id + 0 = m.queue_id LIMIT 1) IS NULL;

    IF ids IS NOT NULL THEN
        -- Skips groups without a row, whose queue may have been dropped.
        INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
        SELECT {schema}.pgqueue_recheck_id(), m.queue_id, m.group_key
        FROM unnest(queue_ids, groups) AS m (queue_id, group_key) CROSS JOIN LATERAL (
            SELECT FROM {schema}.pgqueue_group g
            WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key OFFSET 0) g;
    END IF;

    IF places IS NOT NULL THEN
        SELECT n.places INTO places FROM {schema}.pgqueue_next_heads(places) n;
        INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
        SELECT {schema}.pgqueue_recheck_id(), g.queue_id, g.group_key
        FROM {schema}.pgqueue_group g WHERE g.ctid = ANY(places);
    END IF;
END
$$;

-- The trigger does little by itself, since most queues have no groups.
CREATE FUNCTION {schema}.pgqueue_members_gone() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    queue_ids integer[];
    groups text[];
BEGIN
    PERFORM FROM gone WHERE group_key IS NOT NULL LIMIT 1;
    IF FOUND THEN
        SELECT array_agg(id), array_agg(queue_id), array_agg(group_key)
        INTO ids, queue_ids, groups
        FROM gone WHERE group_key IS NOT NULL;
        PERFORM {schema}.pgqueue_go_on(TG_ARGV[0] = 'ready', ids, queue_ids, groups);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_members_gone() FROM PUBLIC;

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON {schema}.pgqueue_ready
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_members_gone('ready');

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON {schema}.pgqueue_deferred
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_members_gone('deferred');
