-- Deletes what the live tables still have of an unlogged queue whose messages a crash has removed:
-- the rows and unique keys of messages that no longer exist. Messages sent since the crash stay. The
-- engine calls it before it opens such a queue, and claim_keys.sql before it looks for a key.
--
-- Returns whether it deleted anything. A role that may only send deletes the unique keys, and leaves
-- the rest to a consumer; any other role without the rights deletes nothing. A standby cannot read
-- an unlogged table, hence the first test. Sessions cache plans: without enable_seqscan, a plan made
-- while a table was small would scan it for good.
CREATE FUNCTION {schema}.pgqueue_clear_lost(queue_number integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
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

    -- One session at a time: another one goes on meanwhile, as if nothing were left.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('pgqueue.clear_lost', queue_number)) THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.pgqueue_unlogged VALUES (queue_number) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Followers first: the trigger on ready and deferred chooses new heads among those that stay.
    EXECUTE format(clear, 'waiting', queue_number, message, 't.id');
    EXECUTE format(clear, 'lease', queue_number, message, 'ANY(t.ids)');
    EXECUTE format(clear, 'deferred', queue_number, message, 't.id');
    EXECUTE format(clear, 'ready', queue_number, message, 't.id');
    RETURN true;
END
$$;

-- Reverse

DROP FUNCTION IF EXISTS {schema}.pgqueue_clear_lost(integer);
