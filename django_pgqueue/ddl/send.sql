-- Makes an INSERT into pgqueue_message a send. Run once for each set of live tables: {twin} is
-- empty or _unlogged, {unlogged} is false or true.
--
-- Fires once per statement: on the parent, and on each partition for rows inserted there directly
-- (a statement on the parent does not fire the partition's trigger, nor the other way round). A
-- partition has the trigger of its set, and passes its queue's id, which saves a third of the
-- trigger's time: to find the queues in the rows. The parent has both triggers; each takes the
-- queues of its set.

CREATE FUNCTION {schema}.pgqueue_message_inserted{twin}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    queue_ids integer[];
    queue_number integer;
BEGIN
    IF TG_NARGS > 0 THEN
        queue_ids := ARRAY[TG_ARGV[0]::integer];
    ELSE
        queue_ids := ARRAY(
            SELECT i.queue_id FROM (SELECT DISTINCT queue_id FROM inserted) i
            LEFT JOIN LATERAL (
                SELECT q.unlogged FROM {schema}.pgqueue_queue q
                WHERE q.id = i.queue_id OFFSET 0) q ON true
            WHERE coalesce(q.unlogged, false) = {unlogged});
    END IF;

    FOREACH queue_number IN ARRAY queue_ids LOOP
        INSERT INTO {schema}.pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
        SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
        WHERE queue_id = queue_number AND group_key IS NULL
          AND (scheduled_at IS NULL OR scheduled_at <= statement_timestamp());

        IF EXISTS (SELECT FROM inserted WHERE scheduled_at IS NOT NULL OR group_key IS NOT NULL) THEN
            INSERT INTO {schema}.pgqueue_deferred{twin}
                (id, vt, enqueued_at, queue_id, priority, state)
            SELECT id, scheduled_at, enqueued_at, queue_id, priority, 'SCHEDULED'
            FROM inserted
            WHERE queue_id = queue_number AND group_key IS NULL
              AND scheduled_at > statement_timestamp();

            INSERT INTO {schema}.pgqueue_waiting{twin}
                (id, vt, enqueued_at, queue_id, priority, group_key)
            SELECT id, scheduled_at, enqueued_at, queue_id, priority, group_key
            FROM inserted
            WHERE queue_id = queue_number AND group_key IS NOT NULL;

            INSERT INTO {schema}.pgqueue_recheck{twin} (id, queue_id, group_key)
            SELECT min(id), queue_number, group_key FROM inserted
            WHERE queue_id = queue_number AND group_key IS NOT NULL
            GROUP BY group_key;
        END IF;

        IF NOT {schema}.pgqueue_wake(queue_number) THEN
            RAISE EXCEPTION 'pgqueue: queue % does not exist', queue_number
                USING ERRCODE = 'PQ404';
        END IF;
    END LOOP;

    RETURN NULL;
END
$$;

-- A trigger's function needs no right of the roles that fire it.
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_message_inserted{twin}() FROM PUBLIC;

CREATE TRIGGER pgqueue_message_inserted{twin}
    AFTER INSERT ON {schema}.pgqueue_message
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_message_inserted{twin}();

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_message_inserted{twin}() CASCADE;
