-- Wakes the consumers of a queue. Only this function notifies, and only if a consumer sleeps:
-- docs/design.md, "Waking". A queue's sequence says whether one does. Its value is
--
--     the time of the last notification, in milliseconds << 19
--         | the session that notifies, the low 16 bits of its process id << 3
--         | how many more may follow
--
-- or 7 (no time, no session, seven may follow) if a consumer has fallen asleep since. The first send
-- then notifies. If no consumer falls asleep again, others follow after 20, 40, ... 640 ms, since the first
-- may be rolled back or commit late, and then none. The sequence is logged, since an unlogged one is
-- unusable on a promoted standby. The queue's row is read only to notify.
--
-- This function must not fail the send or ack that calls it. If the sequence is lost, for example
-- in a partial restore, to_regclass returns NULL, and so do the strict functions: each call
-- notifies, until pgqueue_repair_wake creates the sequence again. If the notification queue is
-- full, for example because a listener's transaction never ends, NOTIFY would fail the commit. The
-- function then does not notify, and consumers find the message by polling.

-- Returns false if the queue does not exist. This function and the send triggers run with the
-- caller's search path, because setting another takes 0.6 us per call. All names are qualified, and
-- each operator's arguments have exactly the declared types, so that no caller's schema has a
-- better match.
CREATE FUNCTION {schema}.pgqueue_wake(queue_number integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    mark regclass := to_regclass('{schema}.pgqueue_wake_q' || queue_number::text);
    told bigint := pg_sequence_last_value(mark);  -- NULL: no consumer has slept yet
    now_ms bigint := date_part('epoch'::text, clock_timestamp()) * 1000::double precision;
    queue record;
BEGIN
    IF told & 7::bigint = 0::bigint
       OR told >> 19 BETWEEN now_ms - (1280 >> (told & 7::bigint)::integer) AND now_ms + 1000 THEN
        RETURN true;
    END IF;

    SELECT name, notify INTO queue FROM {schema}.pgqueue_queue WHERE id = queue_number;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM setval(mark, (now_ms << 19) + ((pg_backend_pid() & 65535) << 3)
        + coalesce((told & 7::bigint) - 1, 6::bigint));
    IF queue.notify AND pg_notification_queue_usage() < 0.5::double precision THEN
        PERFORM pg_notify('pgqueue', queue.name::text);
    END IF;
    RETURN true;
END
$$;

-- Announces that a consumer falls asleep, because its read found too few messages. Call it outside a
-- transaction. First it changes the sequence, so that the next send notifies: setval is seen at once.
-- Then it looks for what was sent meanwhile, in a snapshot of its own. What remains are senders whose
-- trigger ran before and that commit later. They cannot be seen, but their transactions can.
--
-- heard     the sessions whose notifications have come since the last call, as 16 bits; NULL: some may
--           have been missed, as before the first call. If a send has notified less than 20 ms ago, and
--           its session is not one of these, its notification is still on its way, so the sequence
--           stays as it is: on a slow disk, commits that notify would wait for one another.
-- doubt     in: the result of the last call; 0 at the first. out: while older transactions run, the id
--           of one that began after this consumer changed the sequence; or before its first call,
--           since the one that changed it may be gone. The older ones may be senders that saw the value
--           before. setval assigns the id under the lock by which the trigger reads the value, so
--           younger ones saw this one. Else NULL
-- due       seconds until the next message is due, or until the queue's rate admits the next one; 0 if
--           one is ready; NULL if there is none
CREATE FUNCTION {schema}.pgqueue_fall_asleep(
    queue_number integer, heard integer[], INOUT doubt bigint, OUT due double precision
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    mark regclass := to_regclass('{schema}.pgqueue_wake_q' || queue_number);
    told bigint := pg_sequence_last_value(mark);  -- NULL means the same as 7
    now_ms bigint := date_part('epoch', clock_timestamp()) * 1000;
BEGIN
    IF told <> 7 AND (heard IS NULL OR (told >> 3 & 65535) = ANY(heard)
                      OR told >> 19 NOT BETWEEN now_ms - 20 AND now_ms + 1000) THEN
        PERFORM setval(mark, 7);
        doubt := pg_current_xact_id()::text;
    ELSIF doubt = 0 THEN
        doubt := pg_snapshot_xmax(pg_current_snapshot())::text;
    ELSIF pg_snapshot_xmin(pg_current_snapshot())::text::bigint < doubt AND NOT EXISTS (
        SELECT FROM pg_locks WHERE mode = 'RowExclusiveLock'
           AND relation = to_regclass('{schema}.pgqueue_message_q' || queue_number)
    ) THEN
        doubt := NULL;  -- none of them sends to this queue: who sends holds the lock until its end
    END IF;

    SELECT extract(epoch FROM least(
               (SELECT statement_timestamp() FROM {schema}.pgqueue_ready
                WHERE queue_id = queue_number ORDER BY -priority, turn LIMIT 1),
               (SELECT statement_timestamp() FROM {schema}.pgqueue_recheck
                WHERE queue_id = queue_number ORDER BY id LIMIT 1),
               (SELECT vt FROM {schema}.pgqueue_deferred
                WHERE queue_id = queue_number ORDER BY vt LIMIT 1),
               (SELECT vt FROM {schema}.pgqueue_lease
                WHERE queue_id = queue_number ORDER BY vt LIMIT 1),
               (SELECT free_at FROM {schema}.pgqueue_group
                WHERE queue_id = queue_number AND group_key = '' AND slot = -1
                  AND free_at > statement_timestamp())
           ) - statement_timestamp()),
           CASE WHEN pg_snapshot_xmin(pg_current_snapshot())::text::bigint < doubt THEN doubt END
    INTO due, doubt;
END
$$;

-- Creates a queue's sequence again if it is lost or unreadable, with the rights it had; returns
-- whether it did. A working sequence is left alone.
CREATE FUNCTION {schema}.pgqueue_repair_wake(queue_number integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sequence_name text := '{schema}.pgqueue_wake_q' || queue_number::text;
    mark regclass := to_regclass(sequence_name);
    rights aclitem[];
    entry record;
BEGIN
    PERFORM FROM {schema}.pgqueue_queue WHERE id = queue_number;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF mark IS NOT NULL THEN
        BEGIN
            PERFORM pg_sequence_last_value(mark);
            RETURN false;
        EXCEPTION WHEN OTHERS THEN
            SELECT relacl INTO rights FROM pg_class WHERE oid = mark;
            EXECUTE 'DROP SEQUENCE ' || sequence_name;
        END;
    END IF;

    EXECUTE 'CREATE SEQUENCE ' || sequence_name || ' AS bigint';
    FOR entry IN
        SELECT privilege_type, grantee, is_grantable FROM aclexplode(rights) a
        WHERE grantee = 0 OR EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee)
    LOOP
        EXECUTE format(
            'GRANT %s ON SEQUENCE %s TO %s%s', entry.privilege_type, sequence_name,
            CASE entry.grantee WHEN 0 THEN 'PUBLIC'
                 ELSE quote_ident(pg_get_userbyid(entry.grantee)) END,
            CASE WHEN entry.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    RETURN true;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_repair_wake(integer) FROM PUBLIC;
