-- Wakes the consumers of a queue: the one place that notifies.
--
-- A notification makes commits queue behind one another, each until it is flushed. One in 20 ms is
-- enough, and no more than a slow disk can take. The mark is a sequence: no row lock, no dead row,
-- kept on rollback. It is a logged one: an unlogged one is unusable on a promoted standby. The
-- queue is looked at no more often than the mark is set.
--
-- Nothing here may fail the send or the ack that calls it. to_regclass answers NULL for a lost
-- sequence, as after a restore of a part of a database, and the rest is strict: then each call
-- notifies, until pgqueue_repair_wake has made the sequence anew. A full notification queue, as
-- when a listener's transaction never ends, would fail the commit: then nothing is notified, and
-- consumers find the message by polling.

-- False when there is no such queue. It and the trigger of a send run with the search path of their
-- caller, because to set another one takes 0.6 us each. All names are qualified, and each operator
-- is given the very types it is made for, so that a caller's schema has no better match.
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

-- Makes a queue's sequence anew where it is lost or cannot be read, with the rights it had; says
-- whether it did. A sequence that works is not touched.
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

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_repair_wake(integer);
DROP FUNCTION IF EXISTS {schema}.pgqueue_wake(integer);
