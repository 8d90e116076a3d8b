-- Wakes the consumers of a queue. Only this function notifies, at most every 20 ms: docs/design.md,
-- "Waking". A sequence holds the time of the last notification. It is logged, since an unlogged one
-- is unusable on a promoted standby. The queue's row is read only to notify.
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
    now_ms bigint := date_part('epoch'::text, clock_timestamp()) * 1000::double precision;
    queue record;
BEGIN
    IF pg_sequence_last_value(mark) BETWEEN now_ms - 20 AND now_ms + 1000 THEN
        RETURN true;
    END IF;

    SELECT name, notify INTO queue FROM {schema}.pgqueue_queue WHERE id = queue_number;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM setval(mark, now_ms);
    IF queue.notify AND pg_notification_queue_usage() < 0.5::double precision THEN
        PERFORM pg_notify('pgqueue', queue.name::text);
    END IF;
    RETURN true;
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
