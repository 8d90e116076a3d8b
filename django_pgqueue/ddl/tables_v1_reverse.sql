-- Takes every queue with it: its leaves go with the parents, its sequences by name.
DROP VIEW IF EXISTS pgqueue_live;
DROP TABLE IF EXISTS pgqueue_message, pgqueue_archive;
DROP TABLE IF EXISTS pgqueue_ready, pgqueue_deferred;
DROP TABLE IF EXISTS pgqueue_ready_unlogged, pgqueue_deferred_unlogged;
DROP TABLE IF EXISTS pgqueue_waiting, pgqueue_group, pgqueue_recheck;
DROP TABLE IF EXISTS pgqueue_waiting_unlogged, pgqueue_group_unlogged, pgqueue_recheck_unlogged;
DROP TABLE IF EXISTS pgqueue_dedup, pgqueue_dedup_unlogged;
DROP SEQUENCE IF EXISTS pgqueue_message_id_seq;

DO $$
DECLARE
    sequence regclass;
BEGIN
    FOR sequence IN
        SELECT oid FROM pg_class
        WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace
          AND relname ~ '^pgqueue_wake_q[0-9]+$'
    LOOP
        EXECUTE 'DROP SEQUENCE ' || sequence;
    END LOOP;
END
$$;
