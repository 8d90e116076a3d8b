-- Makes an INSERT into pgqueue_message a send. Run once for each set of live tables: {twin} is
-- empty or _unlogged, {unlogged} is false or true.
--
-- Fires once per statement: on the parent, and on each partition for rows inserted there directly
-- (a statement on the parent does not fire the partition's trigger, nor the other way round).
--
-- A session compiles a trigger's function anew for each table that fires it, and keeps a plan for each
-- of its expressions: 100 kB a queue, and each DDL statement of any session has all sessions look
-- at all of their plans. So the function of a partition has no more than two expressions, and
-- leaves the rest to one that is compiled once.

-- These run with the search path of the sender (wake.sql says why), so each function and operator is
-- given the very types it is made for, not our domains: no other schema has a better match.

-- Wakes the consumers of a queue. The arrays are the rows that are not simply ready: those of
-- groups wait in line, others for their moment. NULL where there are none.
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

-- On a partition: all rows are of its queue.
CREATE FUNCTION {schema}.pgqueue_message_inserted{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
    SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
    WHERE group_key IS NULL
      AND (scheduled_at IS NULL OR scheduled_at::timestamptz <= statement_timestamp());

    -- Only rows that are apart are gathered: most sends have none.
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

-- On the parent, which has the triggers of both sets: each takes the queues of its set.
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

-- A trigger's function needs no right of the roles that fire it.
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
