-- Deletes the rows and unique keys of messages that no longer exist, after a crash has emptied the
-- message table of an unlogged queue. Messages sent since the crash stay. The engine calls this
-- function before it opens such a queue, and claim_keys.sql before it looks for a key.
--
-- Returns whether it deleted anything. A role that may only send deletes the unique keys, and leaves
-- the rest to a consumer. Other roles without the rights delete nothing. The first test is for a
-- standby, which cannot read unlogged tables.
CREATE FUNCTION {schema}.pgqueue_clear_lost(queue_number integer) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    message text := '{schema}.pgqueue_message_q' || queue_number;
    clear text := 'DELETE FROM {schema}.pgqueue_%s t WHERE t.queue_id = %s AND NOT EXISTS '
        || '(SELECT FROM %s m WHERE m.id = %s)';
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RETURN false;
    END IF;
    PERFORM FROM {schema}.pgqueue_unlogged WHERE queue_id = queue_number;
    IF FOUND OR NOT has_table_privilege('{schema}.pgqueue_claim', 'DELETE')
             OR has_column_privilege(to_regclass(message)::oid, 'id', 'SELECT') IS NOT TRUE THEN
        RETURN false;
    END IF;

    EXECUTE format(clear, 'claim', queue_number, message, 't.id');
    IF NOT has_table_privilege('{schema}.pgqueue_unlogged', 'INSERT') THEN
        RETURN true;
    END IF;

    -- One session at a time deletes from the other tables. Other sessions proceed without deleting.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgqueue.clear_lost', queue_number)) THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.pgqueue_unlogged VALUES (queue_number) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Waiting goes first: the trigger on deferred and ready would make its lost messages heads.
    EXECUTE format(clear, 'waiting', queue_number, message, 't.id');
    EXECUTE format(clear, 'lease', queue_number, message, 'ANY(t.ids)');
    EXECUTE format(clear, 'deferred', queue_number, message, 't.id');
    EXECUTE format(clear, 'ready', queue_number, message, 't.id');
    RETURN true;
END
$$;
