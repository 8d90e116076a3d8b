-- Makes an INSERT into pgqueue_message a send. The parent and each partition have a trigger: a
-- statement fires only the triggers of the table that it names. The trigger's function has few
-- expressions, and calls a function that is compiled once (docs/design.md, "An INSERT is a send").

-- These functions run with the sender's search path (wake.sql says why). Arguments of operators and
-- functions have exactly the declared types, not our domains, so that no other schema offers a
-- better match.

-- Wakes the consumers of a queue, and stores the sent rows that are not ready: members of groups,
-- which wait behind their head, and rows that are due at a scheduled time. The arrays have these rows,
-- and are NULL if there are none.
CREATE FUNCTION {schema}.pgqueue_sent(
    queue_number integer, ids bigint[], enqueued_ats timestamptz[], scheduled_ats timestamptz[],
    priorities smallint[], groups text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF ids IS NOT NULL THEN
        INSERT INTO {schema}.pgqueue_deferred
            (id, vt, enqueued_at, queue_id, priority, state)
        SELECT id, scheduled_at, enqueued_at, queue_number, priority, 'SCHEDULED'
        FROM unnest(ids, enqueued_ats, scheduled_ats, priorities, groups)
            AS i (id, enqueued_at, scheduled_at, priority, group_key)
        WHERE group_key IS NULL;

        INSERT INTO {schema}.pgqueue_waiting
            (id, vt, enqueued_at, queue_id, priority, group_key)
        SELECT id, scheduled_at, enqueued_at, queue_number, priority, group_key
        FROM unnest(ids, enqueued_ats, scheduled_ats, priorities, groups)
            AS i (id, enqueued_at, scheduled_at, priority, group_key)
        WHERE group_key IS NOT NULL;

        INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
        SELECT min(id), queue_number, group_key
        FROM unnest(ids, groups) AS i (id, group_key)
        WHERE group_key IS NOT NULL
        GROUP BY group_key
        ORDER BY min(id);  -- the order of reads: neighbours share a page
    END IF;

    IF NOT {schema}.pgqueue_wake(queue_number) THEN
        RAISE EXCEPTION 'pgqueue: queue % does not exist', queue_number
            USING ERRCODE = 'PQ404';
    END IF;
END
$$;

-- A message with a unique key that was scheduled for an earlier time is due. It does not go to the
-- end of the ready messages: it may be the newest of many that replaced each other (claim_keys.sql).
CREATE FUNCTION {schema}.pgqueue_message_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.pgqueue_ready (id, turn, enqueued_at, queue_id, priority, group_key)
    SELECT id, id << 20, enqueued_at, queue_id, priority, group_key FROM inserted
    WHERE group_key IS NULL
      AND (scheduled_at IS NULL OR scheduled_at::timestamptz <= statement_timestamp()
           AND (unique_key IS NULL OR scheduled_at::timestamptz = statement_timestamp()));

    -- The arrays have only the rows that are not ready: most sends have none.
    PERFORM {schema}.pgqueue_sent(
        queue_id, pg_catalog.array_agg(id) FILTER (WHERE later),
        pg_catalog.array_agg(enqueued_at::timestamptz) FILTER (WHERE later),
        pg_catalog.array_agg(scheduled_at::timestamptz) FILTER (WHERE later),
        pg_catalog.array_agg(priority::smallint) FILTER (WHERE later),
        pg_catalog.array_agg(group_key::text) FILTER (WHERE later))
    FROM (SELECT queue_id, id, enqueued_at, scheduled_at, priority, group_key,
                 group_key IS NOT NULL OR scheduled_at::timestamptz > statement_timestamp()
                 OR unique_key IS NOT NULL AND scheduled_at::timestamptz < statement_timestamp()
                 AS later
          FROM inserted OFFSET 0) i
    GROUP BY queue_id;

    RETURN NEW;  -- is NULL here; a literal NULL would be one more expression
END
$$;

-- Roles that fire a trigger need no right to execute its function.
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_message_inserted() FROM PUBLIC;

CREATE TRIGGER pgqueue_message_inserted
    AFTER INSERT ON {schema}.pgqueue_message
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_message_inserted();
