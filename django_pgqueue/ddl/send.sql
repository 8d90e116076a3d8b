-- Makes an INSERT into pgqueue_message a send. Run once for each set of live tables: {twin} is
-- empty or _unlogged, {unlogged} is false or true.
--
-- The triggers fire once per statement, on the parent and on each partition: a statement on the
-- parent fires no trigger of a partition, and a statement on a partition none of the parent.
--
-- A session compiles a trigger function once per table that fires it, and caches a plan per
-- expression: 100 kB per queue. Each DDL statement, in any session, makes all sessions check all
-- their plans. A partition's trigger function therefore has two expressions at most, and calls a
-- function that is compiled once.

-- These functions run with the sender's search path (wake.sql says why). Operators and functions
-- get exactly the types they are declared for, not our domains, so that no other schema offers a
-- better match.

-- Wakes the consumers of a queue. The arrays are the rows that are not ready: members of groups
-- wait behind their head, and other rows for their scheduled time. NULL if there are none.
CREATE FUNCTION {schema}.pgqueue_sent{twin}(
    queue_number integer, ids bigint[], enqueued_ats timestamptz[], scheduled_ats timestamptz[],
    priorities smallint[], groups text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF queue_number IS NULL THEN
        RETURN;  -- an INSERT of no rows
    END IF;

    IF ids IS NOT NULL THEN
        INSERT INTO {schema}.pgqueue_deferred{twin}
            (id, vt, enqueued_at, queue_id, priority, state)
        SELECT id, scheduled_at, enqueued_at, queue_number, priority, 'SCHEDULED'
        FROM unnest(ids, enqueued_ats, scheduled_ats, priorities, groups)
            AS i (id, enqueued_at, scheduled_at, priority, group_key)
        WHERE group_key IS NULL;

        INSERT INTO {schema}.pgqueue_waiting{twin}
            (id, vt, enqueued_at, queue_id, priority, group_key)
        SELECT id, scheduled_at, enqueued_at, queue_number, priority, group_key
        FROM unnest(ids, enqueued_ats, scheduled_ats, priorities, groups)
            AS i (id, enqueued_at, scheduled_at, priority, group_key)
        WHERE group_key IS NOT NULL;

        INSERT INTO {schema}.pgqueue_recheck{twin} (id, queue_id, group_key)
        SELECT min(id), queue_number, group_key
        FROM unnest(ids, groups) AS i (id, group_key)
        WHERE group_key IS NOT NULL
        GROUP BY group_key
        ORDER BY min(id);  -- as reads pass over them: neighbours share a page
    END IF;

    IF NOT {schema}.pgqueue_wake(queue_number) THEN
        RAISE EXCEPTION 'pgqueue: queue % does not exist', queue_number
            USING ERRCODE = 'PQ404';
    END IF;
END
$$;

-- Fires on a partition, whose rows are all of one queue.
CREATE FUNCTION {schema}.pgqueue_message_inserted{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
    SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
    WHERE group_key IS NULL
      AND (scheduled_at IS NULL OR scheduled_at::timestamptz <= statement_timestamp());

    -- Collects only the rows that are not ready: most sends have none.
    PERFORM {schema}.pgqueue_sent{twin}(
        (SELECT queue_id FROM inserted LIMIT 1), pg_catalog.array_agg(id),
        pg_catalog.array_agg(enqueued_at::timestamptz),
        pg_catalog.array_agg(scheduled_at::timestamptz),
        pg_catalog.array_agg(priority::smallint), pg_catalog.array_agg(group_key::text))
    FROM inserted
    WHERE group_key IS NOT NULL OR scheduled_at::timestamptz > statement_timestamp();

    RETURN NEW;  -- NULL; the word would be an expression
END
$$;

-- Fires on the parent, which has the triggers of both sets: each handles the queues of its set.
CREATE FUNCTION {schema}.pgqueue_messages_inserted{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    queue_number integer;
BEGIN
    FOR queue_number IN
        SELECT i.queue_id FROM (SELECT DISTINCT queue_id FROM inserted) i
        LEFT JOIN LATERAL (
            SELECT q.unlogged FROM {schema}.pgqueue_queue q
            WHERE q.id = i.queue_id OFFSET 0) q ON true
        WHERE coalesce(q.unlogged, false) = {unlogged}
    LOOP
        INSERT INTO {schema}.pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
        SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
        WHERE queue_id = queue_number AND group_key IS NULL
          AND (scheduled_at IS NULL OR scheduled_at::timestamptz <= statement_timestamp());

        PERFORM {schema}.pgqueue_sent{twin}(
            queue_number, pg_catalog.array_agg(id),
            pg_catalog.array_agg(enqueued_at::timestamptz),
            pg_catalog.array_agg(scheduled_at::timestamptz),
            pg_catalog.array_agg(priority::smallint), pg_catalog.array_agg(group_key::text))
        FROM inserted
        WHERE queue_id = queue_number
          AND (group_key IS NOT NULL OR scheduled_at::timestamptz > statement_timestamp());
    END LOOP;

    RETURN NEW;
END
$$;

-- Roles that fire a trigger need no right to execute its function.
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_message_inserted{twin}() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_messages_inserted{twin}() FROM PUBLIC;

CREATE TRIGGER pgqueue_message_inserted{twin}
    AFTER INSERT ON {schema}.pgqueue_message
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_messages_inserted{twin}();

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_message_inserted{twin}() CASCADE;
DROP FUNCTION IF EXISTS {schema}.pgqueue_messages_inserted{twin}() CASCADE;
DROP FUNCTION IF EXISTS {schema}.pgqueue_sent{twin}(
    integer, bigint[], timestamptz[], timestamptz[], smallint[], text[]);
