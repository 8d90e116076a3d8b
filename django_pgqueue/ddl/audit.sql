-- The audit log. pgqueue_audit() writes an entry in the transaction of the operation: one that is
-- rolled back leaves none. Triggers record the changes of queues, groups, schedules, topics and
-- lakes by any client, plain SQL too. Nothing here runs when messages are sent, read or settled.

CREATE INDEX pgqueue_audit_arguments ON {schema}.pgqueue_audit
    USING gin (arguments jsonb_path_ops);

-- Writes an entry and returns its id. The actor is what the session has set for its transaction
-- (django_pgqueue.audit), or else the login of a client that uses plain SQL.
CREATE FUNCTION {schema}.pgqueue_audit(
    operation text, queue_number integer, queue text, arguments jsonb,
    amount bigint DEFAULT NULL, actor jsonb DEFAULT NULL, ended boolean DEFAULT true
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pk bigint;
BEGIN
    actor := coalesce(actor, nullif(current_setting('pgqueue.actor', true), '')::jsonb);
    -- An actor without a name does not hide the login.
    actor := jsonb_build_object(
            'who', session_user, 'place', 'sql',
            'program', current_setting('application_name'),
            'host', coalesce(host(inet_client_addr()), ''))
        || CASE WHEN actor ->> 'who' <> '' THEN jsonb_strip_nulls(actor) ELSE '{}' END;
    INSERT INTO {schema}.pgqueue_audit (operation, queue_id, queue_name, arguments, count, ended_at,
                                        who, place, program, host)
    VALUES (operation, queue_number,
            coalesce(queue, (SELECT name FROM {schema}.pgqueue_queue WHERE id = queue_number), ''),
            arguments, amount, CASE WHEN ended THEN statement_timestamp() END,
            left(actor->>'who', 255), coalesce(actor->>'place', ''),
            coalesce(actor->>'program', ''), coalesce(actor->>'host', ''))
    RETURNING id INTO pk;
    RETURN pk;
END
$$;

-- Records a dropped queue with the number of its messages. Of more than 10,000 in a table it is the
-- estimate of the server's statistics, which the entry says: a drop must not wait for a count.
CREATE FUNCTION {schema}.pgqueue_drop_audited(queue_number integer, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most constant bigint := 10000;
    counted bigint[];
    held bigint;
    is_estimate boolean;
BEGIN
    SELECT ARRAY[
        (SELECT count(*) FROM (SELECT FROM {schema}.pgqueue_ready WHERE queue_id = queue_number
                               ORDER BY -priority, turn LIMIT (SELECT most + 1)) r),
        (SELECT count(*) FROM (SELECT FROM {schema}.pgqueue_waiting WHERE queue_id = queue_number
                               ORDER BY group_key, id LIMIT (SELECT most + 1)) w),
        (SELECT count(*) FROM (SELECT FROM {schema}.pgqueue_deferred WHERE queue_id = queue_number
                               ORDER BY vt LIMIT (SELECT most + 1)) d),
        (SELECT coalesce(sum(cardinality(ids)), 0)
         FROM (SELECT ids FROM {schema}.pgqueue_lease WHERE queue_id = queue_number
               ORDER BY vt LIMIT (SELECT most + 1)) l)]
    INTO counted;
    SELECT sum(each), bool_or(each > most) INTO held, is_estimate FROM unnest(counted) AS each;
    IF is_estimate THEN
        SELECT greatest(held, sum(sign * pg_stat_get_live_tuples(relid))) INTO held
        FROM (VALUES (1, 'message'), (-1, 'archive')) AS own (sign, name),
             pg_partition_tree(to_regclass('{schema}.pgqueue_' || name || '_q' || queue_number));
    END IF;
    PERFORM {schema}.pgqueue_audit(
        'drop', queue_number, queue,
        CASE WHEN is_estimate THEN '{"estimate": true}' ELSE '{}' END::jsonb, held);
END
$$;

-- Records a changed row. The argument is the kind of its object. A change has the old value and the
-- new one. The values of bodies are left out.
CREATE FUNCTION {schema}.pgqueue_row_audited() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text := TG_ARGV[0];
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    subject jsonb := CASE kind WHEN 'queue' THEN '{}' ELSE jsonb_build_object(
        kind, coalesce(new_row, old_row)
              -> CASE kind WHEN 'topic' THEN 'pattern' WHEN 'lake' THEN 'path' ELSE 'name' END) END;
    number integer := coalesce(new_row, old_row)
        -> CASE kind WHEN 'queue' THEN 'id' ELSE 'queue_id' END;
    queue text := CASE kind WHEN 'queue' THEN coalesce(old_row, new_row)->>'name' END;
    unrecorded text[] := '{id,name,pattern,path,queue_id,has_slots,created_at,bound_at,declared,'
        'ended_at,next_run_at,last_run_at,ticks,error,dead_letter_queue_id,exported_below,'
        'exported_at,system,body_schemas}';
    changes jsonb;
    is_pause boolean;
BEGIN
    IF kind = 'queue' AND coalesce(new_row, old_row)->>'name' = 'dropped-' || number THEN
        -- pgmq.drop_queue() renames the queue; maintenance deletes it later.
        IF TG_OP = 'UPDATE' AND old_row->'name' <> new_row->'name' THEN
            PERFORM {schema}.pgqueue_drop_audited(number, queue);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF kind = 'queue' THEN
            PERFORM {schema}.pgqueue_drop_audited(number, queue);
        ELSE
            PERFORM {schema}.pgqueue_audit('drop', number, queue, subject);
        END IF;
        RETURN NULL;
    END IF;
    IF kind = 'queue' THEN
        new_row := new_row || jsonb_build_object('dead_letter_queue', (
            SELECT name FROM {schema}.pgqueue_queue
            WHERE id = (new_row->>'dead_letter_queue_id')::integer));
        old_row := old_row || jsonb_build_object('dead_letter_queue', (
            SELECT name FROM {schema}.pgqueue_queue
            WHERE id = (old_row->>'dead_letter_queue_id')::integer));
    END IF;
    IF TG_OP = 'INSERT' THEN
        PERFORM {schema}.pgqueue_audit(
            'create', number, queue,
            subject || jsonb_strip_nulls(new_row - unrecorded - 'body'::text));
        RETURN NULL;
    END IF;
    SELECT jsonb_object_agg(key, CASE key WHEN 'body' THEN '"changed"'
                                 ELSE jsonb_build_array(old_row->key, value) END)
    INTO changes FROM jsonb_each(new_row - unrecorded) WHERE value IS DISTINCT FROM old_row->key;
    IF changes IS NOT NULL THEN
        is_pause := changes - 'paused'::text = '{}';
        PERFORM {schema}.pgqueue_audit(
            CASE WHEN NOT is_pause THEN 'alter'
                 WHEN (new_row->>'paused')::boolean THEN 'pause' ELSE 'resume' END,
            number, queue, subject || CASE WHEN is_pause THEN '{}' ELSE changes END);
    END IF;
    RETURN NULL;
END
$$;

-- Records changed settings of groups: of one group with the old values and the new ones, of many
-- with their number.
CREATE FUNCTION {schema}.pgqueue_groups_audited() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    each record;
    changes jsonb;
BEGIN
    FOR each IN EXECUTE format($query$
        SELECT queue_id, count(*) AS groups, min(group_key) AS key,
               (array_agg(old_row))[1] AS old_row, (array_agg(new_row))[1] AS new_row
        FROM (SELECT coalesce(n.queue_id, o.queue_id) AS queue_id,
                     coalesce(n.group_key, o.group_key) AS group_key,
                     coalesce(to_jsonb(o), '{"paused": false}') AS old_row,
                     coalesce(to_jsonb(n), '{"paused": false}') AS new_row
              FROM %s o FULL JOIN %s n USING (id)) changed
        WHERE old_row <> new_row GROUP BY queue_id $query$,
        CASE TG_OP WHEN 'INSERT' THEN '(SELECT * FROM new_rows WHERE false)' ELSE 'old_rows' END,
        CASE TG_OP WHEN 'DELETE' THEN '(SELECT * FROM old_rows WHERE false)' ELSE 'new_rows' END)
    LOOP
        SELECT jsonb_object_agg(key, jsonb_build_array(each.old_row -> key, each.new_row -> key))
        INTO changes FROM unnest(ARRAY['paused', 'limit', 'rate', 'burst']) AS key
        WHERE coalesce(each.old_row -> key, 'null') <> coalesce(each.new_row -> key, 'null');
        CONTINUE WHEN each.groups = 1 AND changes IS NULL;
        PERFORM {schema}.pgqueue_audit(
            CASE WHEN TG_OP = 'DELETE' THEN 'reset'
                 WHEN each.groups > 1 OR changes - 'paused'::text <> '{}' THEN 'alter'
                 WHEN (each.new_row ->> 'paused')::boolean THEN 'pause' ELSE 'resume' END,
            each.queue_id, NULL,
            CASE WHEN each.groups > 1 THEN jsonb_build_object('groups', each.groups)
                 WHEN TG_OP <> 'DELETE' AND changes - 'paused'::text = '{}'
                 THEN jsonb_build_object('group', each.key)
                 ELSE jsonb_build_object('group', each.key) || changes END);
    END LOOP;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_row_audited() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_groups_audited() FROM PUBLIC;

CREATE TRIGGER pgqueue_queue_audited AFTER INSERT OR DELETE OR UPDATE ON {schema}.pgqueue_queue
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_row_audited('queue');
CREATE TRIGGER pgqueue_binding_audited AFTER INSERT OR DELETE ON {schema}.pgqueue_binding
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_row_audited('topic');
-- Ticks of a schedule and the exports of a lake update other columns.
CREATE TRIGGER pgqueue_schedule_audited AFTER INSERT OR DELETE OR UPDATE OF
    name, queue_id, cron, "interval", time_zone, missed, paused, body, priority, expires, group_key,
    unique_key, until ON {schema}.pgqueue_schedule
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_row_audited('schedule');
CREATE TRIGGER pgqueue_lake_audited
    AFTER INSERT OR DELETE OR UPDATE OF queues, holds_retention ON {schema}.pgqueue_lake
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_row_audited('lake');

CREATE TRIGGER pgqueue_groups_set AFTER INSERT ON {schema}.pgqueue_group_setting
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_groups_audited();
CREATE TRIGGER pgqueue_groups_altered AFTER UPDATE ON {schema}.pgqueue_group_setting
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_groups_audited();
CREATE TRIGGER pgqueue_groups_reset AFTER DELETE ON {schema}.pgqueue_group_setting
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_groups_audited();

ALTER TABLE {schema}.pgqueue_audit ENABLE ROW LEVEL SECURITY;

-- A role sees its own entries and those of its queues. It adds entries, in whose column role the
-- server writes its name, and counts of operations that have not ended. Only the owner deletes.
CREATE POLICY pgqueue_audit_seen ON {schema}.pgqueue_audit FOR SELECT
    USING (role = current_user OR {schema}.pgqueue_may(queue_id, 'SELECT'));
CREATE POLICY pgqueue_audit_added ON {schema}.pgqueue_audit FOR INSERT WITH CHECK (true);
CREATE POLICY pgqueue_audit_counted ON {schema}.pgqueue_audit FOR UPDATE
    USING (ended_at IS NULL AND (role = current_user OR {schema}.pgqueue_may(queue_id, 'DELETE')))
    WITH CHECK (true);

-- Reverse

DROP POLICY IF EXISTS pgqueue_audit_counted ON {schema}.pgqueue_audit;
DROP POLICY IF EXISTS pgqueue_audit_added ON {schema}.pgqueue_audit;
DROP POLICY IF EXISTS pgqueue_audit_seen ON {schema}.pgqueue_audit;
