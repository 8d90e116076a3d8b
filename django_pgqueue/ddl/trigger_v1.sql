-- What makes an INSERT a send. Released: never edit, add a trigger_v2.sql.
--
-- Fires once per statement on the parent, and on each leaf for rows inserted there directly
-- (a statement on the parent does not fire the leaf's trigger, nor the other way round). A leaf
-- passes its queue's id and whether that is unlogged, which saves a third of the trigger's time: to
-- find the one in the rows, and the other in the table of queues.

CREATE FUNCTION pgqueue_message_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    queue_ids integer[];
    queue_number integer;
    is_unlogged boolean;
    queue record;
    now_ms bigint;
    woken_ms bigint;
BEGIN
    IF TG_NARGS > 0 THEN
        queue_ids := ARRAY[TG_ARGV[0]::integer];
        is_unlogged := TG_ARGV[1];
    ELSE
        queue_ids := ARRAY(SELECT DISTINCT queue_id FROM inserted);
    END IF;

    FOREACH queue_number IN ARRAY queue_ids LOOP
        IF TG_NARGS = 0 THEN
            SELECT unlogged INTO is_unlogged FROM pgqueue_queue WHERE id = queue_number;
        END IF;

        IF is_unlogged THEN
            INSERT INTO pgqueue_ready_unlogged (id, enqueued_at, queue_id, priority, group_key)
            SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
            WHERE queue_id = queue_number AND group_key IS NULL
              AND (scheduled_at IS NULL OR scheduled_at <= statement_timestamp());
        ELSE
            INSERT INTO pgqueue_ready (id, enqueued_at, queue_id, priority, group_key)
            SELECT id, enqueued_at, queue_id, priority, group_key FROM inserted
            WHERE queue_id = queue_number AND group_key IS NULL
              AND (scheduled_at IS NULL OR scheduled_at <= statement_timestamp());
        END IF;

        IF EXISTS (SELECT FROM inserted WHERE scheduled_at IS NOT NULL OR group_key IS NOT NULL) THEN
            IF is_unlogged THEN
                INSERT INTO pgqueue_deferred_unlogged
                    (id, vt, enqueued_at, queue_id, priority, state)
                SELECT id, scheduled_at, enqueued_at, queue_id, priority, 'SCHEDULED'
                FROM inserted
                WHERE queue_id = queue_number AND group_key IS NULL
                  AND scheduled_at > statement_timestamp();

                INSERT INTO pgqueue_waiting_unlogged
                    (id, vt, enqueued_at, queue_id, priority, group_key)
                SELECT id, scheduled_at, enqueued_at, queue_id, priority, group_key
                FROM inserted
                WHERE queue_id = queue_number AND group_key IS NOT NULL;

                INSERT INTO pgqueue_recheck_unlogged (id, queue_id, group_key)
                SELECT min(id), queue_number, group_key FROM inserted
                WHERE queue_id = queue_number AND group_key IS NOT NULL
                GROUP BY group_key;
            ELSE
                INSERT INTO pgqueue_deferred
                    (id, vt, enqueued_at, queue_id, priority, state)
                SELECT id, scheduled_at, enqueued_at, queue_id, priority, 'SCHEDULED'
                FROM inserted
                WHERE queue_id = queue_number AND group_key IS NULL
                  AND scheduled_at > statement_timestamp();

                INSERT INTO pgqueue_waiting
                    (id, vt, enqueued_at, queue_id, priority, group_key)
                SELECT id, scheduled_at, enqueued_at, queue_id, priority, group_key
                FROM inserted
                WHERE queue_id = queue_number AND group_key IS NOT NULL;

                INSERT INTO pgqueue_recheck (id, queue_id, group_key)
                SELECT min(id), queue_number, group_key FROM inserted
                WHERE queue_id = queue_number AND group_key IS NOT NULL
                GROUP BY group_key;
            END IF;
        END IF;

        -- A notification makes commits queue behind one another, each until it is flushed. One
        -- every 20 ms is enough, and no more than a slow disk can take. The mark is a sequence: no
        -- row lock, no dead row, kept on rollback. The queue is looked at only then, too.
        now_ms := date_part('epoch', clock_timestamp()) * 1000;
        woken_ms := pg_sequence_last_value(('pgqueue_wake_q' || queue_number)::regclass);
        IF woken_ms IS NULL OR woken_ms NOT BETWEEN now_ms - 20 AND now_ms + 1000 THEN
            SELECT name, notify INTO queue FROM pgqueue_queue WHERE id = queue_number;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'pgqueue: queue % does not exist', queue_number
                    USING ERRCODE = 'PQ404';
            END IF;
            now_ms := setval(('pgqueue_wake_q' || queue_number)::regclass, now_ms);
            IF queue.notify THEN
                PERFORM pg_notify('pgqueue', queue.name);
            END IF;
        END IF;
    END LOOP;

    RETURN NULL;
END
$$;

CREATE TRIGGER pgqueue_message_inserted
    AFTER INSERT ON pgqueue_message
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue_message_inserted();

-- A test suite that truncates the queues empties the tables of all models, and these have none. Leaves
-- stay: the next send to one is to notice that its queue is gone.
CREATE FUNCTION pgqueue_queues_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM setval(oid, 1, false) FROM pg_class
    WHERE relkind = 'S' AND relnamespace = TG_TABLE_SCHEMA::regnamespace
      AND relname ~ '^pgqueue_wake_q[0-9]+$';
    TRUNCATE pgqueue_ready_unlogged, pgqueue_deferred_unlogged, pgqueue_lease,
        pgqueue_lease_unlogged, pgqueue_waiting,
        pgqueue_waiting_unlogged, pgqueue_group, pgqueue_group_unlogged, pgqueue_recheck,
        pgqueue_recheck_unlogged, pgqueue_dedup, pgqueue_dedup_unlogged;
    RETURN NULL;
END
$$;

CREATE TRIGGER pgqueue_queues_truncated
    AFTER TRUNCATE ON pgqueue_queue
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue_queues_truncated();
