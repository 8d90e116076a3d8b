-- How a FIFO group gets its next head. Released: never edit, add a groups_v2.sql.
--
-- Whoever removes a head (an ack, a dead letter, an operator, plain SQL in another language)
-- brings up the next in the same transaction. Nobody waits: who finds the group's row locked
-- leaves a recheck, which the next reader after the commits takes up. Run once for each of the
-- two sets of tables; {twin} is empty or _unlogged.

-- Their plans are kept by the session, and one made while a table was small would scan it for
-- good. So they are pinned to indexes, and ask nothing for which the wrong index would do.

-- The caller holds the lock of the group's row. Each statement sees what was committed before it.
CREATE FUNCTION pgqueue_next_head{twin}(
    queue_number integer, group_name text, batch bigint[]
) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    follower record;
    successor record;
    last bigint;
    now_ms bigint;
    woken_ms bigint;
BEGIN
    -- An operator may remove the one that is next at this very moment: then look again.
    LOOP
        -- What one batch leased together with the old head is still out: the group goes on after
        -- it, and before that with what comes earlier, because it was set back in line. The queue
        -- counts: a follower that died is in another one, with its id.
        last := 9223372036854775807;
        IF batch IS NOT NULL THEN
            SELECT id, priority INTO follower FROM pgqueue_deferred{twin}
            WHERE id = ANY(batch) AND queue_id + 0 = queue_number ORDER BY id LIMIT 1;
            IF FOUND THEN
                last := follower.id;
            ELSE
                batch := NULL;
            END IF;
        END IF;

        DELETE FROM pgqueue_waiting{twin}
        WHERE ctid = (SELECT ctid FROM pgqueue_waiting{twin}
                      WHERE queue_id = queue_number AND group_key = group_name AND id < last
                      ORDER BY id LIMIT 1)
        RETURNING * INTO successor;
        EXIT WHEN FOUND;
        PERFORM FROM pgqueue_waiting{twin}
        WHERE queue_id = queue_number AND group_key = group_name AND id < last LIMIT 1;
        CONTINUE WHEN FOUND;

        IF batch IS NOT NULL THEN
            UPDATE pgqueue_group{twin} SET head = follower.id, priority = follower.priority
            WHERE queue_id = queue_number AND group_key = group_name;
        ELSE
            DELETE FROM pgqueue_group{twin}
            WHERE queue_id = queue_number AND group_key = group_name;
        END IF;
        RETURN;
    END LOOP;

    IF successor.read_ct = 0
       AND (successor.vt IS NULL OR successor.vt <= statement_timestamp()) THEN
        INSERT INTO pgqueue_ready{twin} (id, enqueued_at, queue_id, priority, group_key)
        VALUES (successor.id, successor.enqueued_at, queue_number, successor.priority, group_name);
    ELSE
        INSERT INTO pgqueue_deferred{twin}
            (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts,
             priority, state, group_key)
        VALUES (successor.id, coalesce(successor.vt, statement_timestamp()),
                successor.enqueued_at, successor.first_read_at, successor.last_read_at,
                queue_number, successor.read_ct, successor.attempts, successor.priority,
                CASE successor.read_ct WHEN 0 THEN 'SCHEDULED' ELSE 'RETRYABLE' END, group_name);
    END IF;

    UPDATE pgqueue_group{twin}
    SET head = successor.id, priority = successor.priority, followers = batch
    WHERE queue_id = queue_number AND group_key = group_name;

    -- As a send does, for the consumers that sleep.
    IF (SELECT notify FROM pgqueue_queue WHERE id = queue_number) THEN
        now_ms := date_part('epoch', clock_timestamp()) * 1000;
        woken_ms := pg_sequence_last_value(('pgqueue_wake_q' || queue_number)::regclass);
        IF woken_ms IS NULL OR woken_ms NOT BETWEEN now_ms - 5 AND now_ms + 1000 THEN
            now_ms := setval(('pgqueue_wake_q' || queue_number)::regclass, now_ms);
            PERFORM pg_notify('pgqueue', name) FROM pgqueue_queue WHERE id = queue_number;
        END IF;
    END IF;
END
$$;

CREATE FUNCTION pgqueue_member_gone{twin}() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    held record;
BEGIN
    -- A head that a read takes from ready only moves.
    IF TG_ARGV[0] = 'ready' THEN
        PERFORM FROM pgqueue_deferred{twin} WHERE id = OLD.id;
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END IF;

    SELECT head, followers INTO held FROM pgqueue_group{twin}
    WHERE queue_id = OLD.queue_id AND group_key = OLD.group_key
    FOR UPDATE SKIP LOCKED;

    IF NOT FOUND THEN
        -- Somebody else has the lock, and may not see that this message goes. Or all of the group
        -- went in one statement, and its row did already.
        INSERT INTO pgqueue_recheck{twin} (id, queue_id, group_key)
        SELECT OLD.id, OLD.queue_id, OLD.group_key FROM pgqueue_group{twin}
        WHERE queue_id = OLD.queue_id AND group_key = OLD.group_key;
    ELSIF held.head = OLD.id THEN
        PERFORM pgqueue_next_head{twin}(OLD.queue_id, OLD.group_key, held.followers);
        -- A transaction that keeps its first snapshot may have overlooked what came since.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            INSERT INTO pgqueue_recheck{twin} (id, queue_id, group_key)
            VALUES (OLD.id, OLD.queue_id, OLD.group_key);
        END IF;
    END IF;
    -- Otherwise it was a follower in a batch; the lock, kept until the commit, makes whoever
    -- removes the head meanwhile leave a recheck instead of naming this message the next head.

    RETURN NULL;
END
$$;

CREATE TRIGGER pgqueue_member_gone AFTER DELETE ON pgqueue_ready{twin}
    FOR EACH ROW WHEN (OLD.group_key IS NOT NULL)
    EXECUTE FUNCTION pgqueue_member_gone{twin}('ready');

CREATE TRIGGER pgqueue_member_gone AFTER DELETE ON pgqueue_deferred{twin}
    FOR EACH ROW WHEN (OLD.group_key IS NOT NULL)
    EXECUTE FUNCTION pgqueue_member_gone{twin}('deferred');
