-- Takes every queue with it: its leaves go with the parents, its sequence by name. So does what an
-- unfinished conversion has made, and first: its rows take their ids from the parents' sequence.
DO $$
DECLARE
    object text;
BEGIN
    FOR object IN
        SELECT 'SEQUENCE ' || oid::regclass FROM pg_class
        WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace
          AND relname ~ '^pgqueue_wake_q[0-9]+$'
        UNION ALL
        SELECT 'TABLE ' || oid::regclass FROM pg_class
        WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace
          AND relname ~ '^pgqueue_(message|archive)_q[0-9]+_(new|gone|old)$'
        UNION ALL
        SELECT 'FUNCTION ' || oid::regprocedure || ' CASCADE' FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
          AND proname ~ '^pgqueue_(bound|message_copy|archive_copy)_q[0-9]+$'
    LOOP
        EXECUTE 'DROP ' || object;
    END LOOP;
END
$$;

DROP VIEW IF EXISTS pgqueue_live;
DROP TABLE IF EXISTS pgqueue_message, pgqueue_archive;
DROP TABLE IF EXISTS pgqueue_ready, pgqueue_deferred;
DROP TABLE IF EXISTS pgqueue_ready_unlogged, pgqueue_deferred_unlogged;
DROP TABLE IF EXISTS pgqueue_lease, pgqueue_lease_unlogged;
DROP TABLE IF EXISTS pgqueue_waiting, pgqueue_group, pgqueue_recheck;
DROP TABLE IF EXISTS pgqueue_waiting_unlogged, pgqueue_group_unlogged, pgqueue_recheck_unlogged;
DROP TABLE IF EXISTS pgqueue_dedup, pgqueue_dedup_unlogged;
DROP SEQUENCE IF EXISTS pgqueue_message_id_seq;
