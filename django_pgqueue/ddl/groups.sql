-- Gives a FIFO group its next head.
--
-- A statement that removes heads (an ack, a dead letter, an operator's DELETE) brings up the next
-- ones in the same transaction, all of them at once. It never waits: where a group's row is locked
-- it leaves a recheck, which the next reader after the commits takes up.
-- Run once for each set of live tables: {twin} is empty or _unlogged.

-- A session keeps plans, and one made while a table was small would scan it for good: so they are
-- pinned to indexes and to the places of rows, and no other index serves what they ask.

-- Takes the places of groups' rows, whose locks the caller holds and whose heads are gone. Returns
-- how many heads there are now. Each statement sees what was committed before it.
CREATE FUNCTION {schema}.pgqueue_next_heads{twin}(places tid[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    heads integer := 0;
    queue_ids integer[];
    found integer[];
    seen bigint;
BEGIN
    -- An operator may remove the next head at this moment: then look again. The row of a group that
    -- has its head is in another place by then.
    LOOP
        -- Followers leased in one batch with the old head are still in flight: the group goes on
        -- after them, and before that with earlier messages that were set back in line. The queue
        -- counts: a dead-lettered follower is in another one, with its id.
        WITH line AS MATERIALIZED (
            SELECT g.ctid AS place, g.queue_id, g.group_key, g.followers, f.id, f.priority
            FROM {schema}.pgqueue_group{twin} g LEFT JOIN LATERAL (
                SELECT d.id, d.priority FROM {schema}.pgqueue_deferred{twin} d
                WHERE g.followers IS NOT NULL AND d.id = ANY(g.followers)
                  AND d.queue_id + 0 = g.queue_id
                ORDER BY d.id LIMIT 1) f ON true
            WHERE g.ctid = ANY(places)
        ),
        next AS MATERIALIZED (
            SELECT l.*, w.spot FROM line l LEFT JOIN LATERAL (
                SELECT w.ctid AS spot FROM {schema}.pgqueue_waiting{twin} w
                WHERE w.queue_id = l.queue_id AND w.group_key = l.group_key
                  AND w.id < coalesce(l.id, 9223372036854775807)
                ORDER BY w.id LIMIT 1) w ON true
        ),
        moved AS (
            DELETE FROM {schema}.pgqueue_waiting{twin} w USING next n WHERE w.ctid = n.spot
            RETURNING w.*, n.place, CASE WHEN n.id IS NOT NULL THEN n.followers END AS followers
        ),
        readable AS (
            INSERT INTO {schema}.pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
            SELECT id, enqueued_at, queue_id, priority, group_key FROM moved
            WHERE read_ct = 0 AND (vt IS NULL OR vt <= statement_timestamp())
        ),
        not_yet AS (
            INSERT INTO {schema}.pgqueue_deferred{twin}
                (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts,
                 priority, state, group_key)
            SELECT id, coalesce(vt, statement_timestamp()), enqueued_at, first_read_at,
                   last_read_at, queue_id, read_ct, attempts, priority,
                   CASE read_ct WHEN 0 THEN 'SCHEDULED' ELSE 'RETRYABLE' END, group_key
            FROM moved
            WHERE read_ct > 0 OR vt > statement_timestamp()
        ),
        headed AS (
            UPDATE {schema}.pgqueue_group{twin} g
            SET head = n.id, priority = n.priority, followers = n.followers
            FROM (SELECT place, id, priority, followers FROM moved
                  UNION ALL
                  SELECT place, id, priority, followers FROM next
                  WHERE spot IS NULL AND id IS NOT NULL) n
            WHERE g.ctid = n.place
        ),
        ended AS (
            DELETE FROM {schema}.pgqueue_group{twin}
            WHERE ctid = ANY(ARRAY(SELECT place FROM next WHERE spot IS NULL AND id IS NULL))
        )
        SELECT array_agg(queue_id), (SELECT count(spot) FROM next) INTO found, seen FROM moved;

        heads := heads + coalesce(cardinality(found), 0);
        queue_ids := queue_ids || found;
        EXIT WHEN seen = coalesce(cardinality(found), 0);
    END LOOP;

    PERFORM {schema}.pgqueue_wake(id) FROM (SELECT DISTINCT unnest(queue_ids) AS id) woken;

    RETURN heads;
END
$$;

-- Takes messages of groups that were deleted from a table. For a follower in a batch, the lock on the
-- group's row is kept until the commit: a statement that removes the head meanwhile then leaves a
-- recheck instead of naming this message the next head.
CREATE FUNCTION {schema}.pgqueue_go_on{twin}(
    from_ready boolean, ids bigint[], queue_ids integer[], groups text[]
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    blind boolean := current_setting('transaction_isolation') <> 'read committed';
    places tid[];
BEGIN
    -- Heads that a read took from ready only move. A holder of the lock may not see that this
    -- message goes; and a transaction that keeps its first snapshot may overlook what came since.
    SELECT array_agg(g.place) FILTER (WHERE g.head = m.id),
           array_agg(m.id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.queue_id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.group_key) FILTER (WHERE blind OR g.place IS NULL)
    INTO places, ids, queue_ids, groups
    FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) LEFT JOIN LATERAL (
        SELECT g.ctid AS place, g.head FROM {schema}.pgqueue_group{twin} g
        WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key
        FOR UPDATE SKIP LOCKED) g ON true
    WHERE NOT from_ready
       OR (SELECT true FROM {schema}.pgqueue_deferred{twin} d
           WHERE d.id = m.id AND d.queue_id + 0 = m.queue_id LIMIT 1) IS NULL;

    IF ids IS NOT NULL THEN
        -- A group whose row is gone, as when its queue is dropped, needs no look.
        INSERT INTO {schema}.pgqueue_recheck{twin} (id, queue_id, group_key)
        SELECT m.id, m.queue_id, m.group_key
        FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) CROSS JOIN LATERAL (
            SELECT FROM {schema}.pgqueue_group{twin} g
            WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key OFFSET 0) g;
    END IF;

    IF places IS NOT NULL THEN
        PERFORM {schema}.pgqueue_next_heads{twin}(places);
    END IF;
END
$$;

-- Most queues have no groups, so this part does as little as it can.
CREATE FUNCTION {schema}.pgqueue_members_gone{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
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
        PERFORM {schema}.pgqueue_go_on{twin}(TG_ARGV[0] = 'ready', ids, queue_ids, groups);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_members_gone{twin}() FROM PUBLIC;

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON {schema}.pgqueue_ready{twin}
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_members_gone{twin}('ready');

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON {schema}.pgqueue_deferred{twin}
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_members_gone{twin}('deferred');

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_members_gone{twin}() CASCADE;
DROP FUNCTION IF EXISTS {schema}.pgqueue_go_on{twin}(boolean, bigint[], integer[], text[]);
DROP FUNCTION IF EXISTS {schema}.pgqueue_next_heads{twin}(tid[]);
