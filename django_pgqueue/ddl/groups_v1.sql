-- How a FIFO group gets its next head. Released: never edit, add a groups_v2.sql.
--
-- Whoever removes heads (an ack, a dead letter, an operator, plain SQL in another language)
-- brings up the next ones in the same transaction, all of a statement at once. Nobody waits: who
-- finds a group's row locked leaves a recheck, which the next reader after the commits takes up.
-- Run once for each of the two sets of tables; {twin} is empty or _unlogged.

-- Plans are kept by the session, and one made while a table was small would scan it for good. So
-- they are pinned to indexes and to the places of rows, and ask nothing for which the wrong index
-- would do.

-- Takes the places of groups' rows, whose locks the caller holds and whose heads are gone. Returns
-- how many heads there are now. Each statement sees what was committed before it.
CREATE FUNCTION pgqueue_next_heads{twin}(places tid[]) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    heads integer := 0;
    queue_ids integer[];
    found integer[];
    seen bigint;
    queue record;
    now_ms bigint;
    woken_ms bigint;
BEGIN
    -- An operator may remove one that is next at this very moment: then look again. The row of a
    -- group that has been dealt with is in another place by then.
    LOOP
        -- What one batch leased together with the old head is still out: the group goes on after
        -- it, and before that with what comes earlier, because it was set back in line. The queue
        -- counts: a follower that died is in another one, with its id.
        WITH line AS MATERIALIZED (
            SELECT g.ctid AS place, g.queue_id, g.group_key, g.followers, f.id, f.priority
            FROM pgqueue_group{twin} g LEFT JOIN LATERAL (
                SELECT d.id, d.priority FROM pgqueue_deferred{twin} d
                WHERE g.followers IS NOT NULL AND d.id = ANY(g.followers)
                  AND d.queue_id + 0 = g.queue_id
                ORDER BY d.id LIMIT 1) f ON true
            WHERE g.ctid = ANY(places)
        ),
        next AS MATERIALIZED (
            SELECT l.*, w.spot FROM line l LEFT JOIN LATERAL (
                SELECT w.ctid AS spot FROM pgqueue_waiting{twin} w
                WHERE w.queue_id = l.queue_id AND w.group_key = l.group_key
                  AND w.id < coalesce(l.id, 9223372036854775807)
                ORDER BY w.id LIMIT 1) w ON true
        ),
        moved AS (
            DELETE FROM pgqueue_waiting{twin} w USING next n WHERE w.ctid = n.spot
            RETURNING w.*, n.place, CASE WHEN n.id IS NOT NULL THEN n.followers END AS followers
        ),
        readable AS (
            INSERT INTO pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
            SELECT id, enqueued_at, queue_id, priority, group_key FROM moved
            WHERE read_ct = 0 AND (vt IS NULL OR vt <= statement_timestamp())
        ),
        not_yet AS (
            INSERT INTO pgqueue_deferred{twin}
                (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts,
                 priority, state, group_key)
            SELECT id, coalesce(vt, statement_timestamp()), enqueued_at, first_read_at,
                   last_read_at, queue_id, read_ct, attempts, priority,
                   CASE read_ct WHEN 0 THEN 'SCHEDULED' ELSE 'RETRYABLE' END, group_key
            FROM moved
            WHERE read_ct > 0 OR vt > statement_timestamp()
        ),
        headed AS (
            UPDATE pgqueue_group{twin} g
            SET head = n.id, priority = n.priority, followers = n.followers
            FROM (SELECT place, id, priority, followers FROM moved
                  UNION ALL
                  SELECT place, id, priority, followers FROM next
                  WHERE spot IS NULL AND id IS NOT NULL) n
            WHERE g.ctid = n.place
        ),
        ended AS (
            DELETE FROM pgqueue_group{twin}
            WHERE ctid = ANY(ARRAY(SELECT place FROM next WHERE spot IS NULL AND id IS NULL))
        )
        SELECT array_agg(queue_id), (SELECT count(spot) FROM next) INTO found, seen FROM moved;

        heads := heads + coalesce(cardinality(found), 0);
        queue_ids := queue_ids || found;
        EXIT WHEN seen = coalesce(cardinality(found), 0);
    END LOOP;

    -- As a send does, for the consumers that sleep.
    FOR queue IN SELECT id, name FROM pgqueue_queue WHERE id = ANY(queue_ids) AND notify LOOP
        now_ms := date_part('epoch', clock_timestamp()) * 1000;
        woken_ms := pg_sequence_last_value(('pgqueue_wake_q' || queue.id)::regclass);
        IF woken_ms IS NULL OR woken_ms NOT BETWEEN now_ms - 20 AND now_ms + 1000 THEN
            now_ms := setval(('pgqueue_wake_q' || queue.id)::regclass, now_ms);
            PERFORM pg_notify('pgqueue', queue.name);
        END IF;
    END LOOP;

    RETURN heads;
END
$$;

-- Takes messages of groups that were deleted from a table. Where it is not the head that went, but
-- a follower in a batch, the lock, kept until the commit, makes whoever removes the head meanwhile
-- leave a recheck instead of naming this message the next head.
CREATE FUNCTION pgqueue_go_on{twin}(
    from_ready boolean, ids bigint[], queue_ids integer[], groups text[]
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    blind boolean := current_setting('transaction_isolation') <> 'read committed';
    places tid[];
BEGIN
    -- Heads that a read took from ready only move. Who else has the lock may not see that this
    -- message goes; and a transaction that keeps its first snapshot may overlook what came since.
    SELECT array_agg(g.place) FILTER (WHERE g.head = m.id),
           array_agg(m.id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.queue_id) FILTER (WHERE blind OR g.place IS NULL),
           array_agg(m.group_key) FILTER (WHERE blind OR g.place IS NULL)
    INTO places, ids, queue_ids, groups
    FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) LEFT JOIN LATERAL (
        SELECT g.ctid AS place, g.head FROM pgqueue_group{twin} g
        WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key
        FOR UPDATE SKIP LOCKED) g ON true
    WHERE NOT from_ready
       OR (SELECT d.queue_id FROM pgqueue_deferred{twin} d WHERE d.id = m.id)
          IS DISTINCT FROM m.queue_id;

    IF ids IS NOT NULL THEN
        -- A group whose row is gone, as when its queue is dropped, needs no look.
        INSERT INTO pgqueue_recheck{twin} (id, queue_id, group_key)
        SELECT m.id, m.queue_id, m.group_key
        FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) CROSS JOIN LATERAL (
            SELECT FROM pgqueue_group{twin} g
            WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key OFFSET 0) g;
    END IF;

    IF places IS NOT NULL THEN
        PERFORM pgqueue_next_heads{twin}(places);
    END IF;
END
$$;

-- Most queues have no groups, so this part does as little as it can.
CREATE FUNCTION pgqueue_members_gone{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
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
        PERFORM pgqueue_go_on{twin}(TG_ARGV[0] = 'ready', ids, queue_ids, groups);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON pgqueue_ready{twin}
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue_members_gone{twin}('ready');

CREATE TRIGGER pgqueue_members_gone AFTER DELETE ON pgqueue_deferred{twin}
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue_members_gone{twin}('deferred');
