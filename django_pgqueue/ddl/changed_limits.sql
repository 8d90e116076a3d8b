-- Changed limits and rates: triggers on the tables of settings, of queues and of single groups,
-- apply them to what is in the slots (slots.sql).

-- Applies changed settings of one group, or of all groups of a queue: moves surplus heads back to
-- waiting, fills free slots, and inserts a recheck for each group, since slots may be left. Waits
-- for transactions that have locked the one group: their heads would start in spite of a pause.
CREATE FUNCTION {schema}.pgqueue_apply_limits(queue integer, key text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    next_key text := coalesce(key, '');
BEGIN
    IF key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(key, queue));
        PERFORM FROM {schema}.pgqueue_group WHERE queue_id = queue AND group_key = key
        ORDER BY slot LIMIT 1 FOR UPDATE;
    END IF;
    LOOP
        IF key IS NULL THEN
            SELECT least(
                (SELECT g.group_key FROM {schema}.pgqueue_group g
                 WHERE g.queue_id = queue AND g.group_key > next_key ORDER BY g.group_key LIMIT 1),
                (SELECT w.group_key FROM {schema}.pgqueue_waiting w
                 WHERE w.queue_id = queue AND w.group_key > next_key ORDER BY w.group_key LIMIT 1))
            INTO next_key;
            EXIT WHEN next_key IS NULL;
        END IF;
        PERFORM {schema}.pgqueue_fill_slots(queue, next_key, false);
        INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
        SELECT {schema}.pgqueue_recheck_id(), queue, next_key;
        EXIT WHEN key IS NOT NULL;
    END LOOP;
    PERFORM {schema}.pgqueue_wake(queue);
END
$$;

CREATE FUNCTION {schema}.pgqueue_queue_limited() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.has_slots := coalesce(NEW.has_slots, false) OR TG_OP = 'UPDATE' AND OLD.has_slots
                     OR NEW.group_limit > 1 IS TRUE OR NEW.group_rate IS NOT NULL;
    RETURN NEW;
END
$$;

CREATE FUNCTION {schema}.pgqueue_limits_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (NEW.group_limit, NEW.group_rate, NEW.group_burst)
                            IS DISTINCT FROM (OLD.group_limit, OLD.group_rate, OLD.group_burst) THEN
        PERFORM {schema}.pgqueue_apply_limits(NEW.id);
    END IF;
    IF TG_OP = 'UPDATE' AND (NEW."limit", NEW.rate, NEW.burst)
                            IS DISTINCT FROM (OLD."limit", OLD.rate, OLD.burst) THEN
        PERFORM {schema}.pgqueue_wake(NEW.id);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION {schema}.pgqueue_group_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM {schema}.pgqueue_apply_limits(OLD.queue_id, OLD.group_key);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        UPDATE {schema}.pgqueue_queue SET has_slots = true
        WHERE id = NEW.queue_id AND NOT has_slots;
        PERFORM {schema}.pgqueue_apply_limits(NEW.queue_id, NEW.group_key);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_queue_limited() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_limits_changed() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_group_changed() FROM PUBLIC;

CREATE TRIGGER pgqueue_queue_limited BEFORE INSERT OR UPDATE ON {schema}.pgqueue_queue
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_queue_limited();

CREATE TRIGGER pgqueue_limits_changed AFTER INSERT OR UPDATE ON {schema}.pgqueue_queue
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_limits_changed();

CREATE TRIGGER pgqueue_group_changed AFTER INSERT OR DELETE OR UPDATE
    ON {schema}.pgqueue_group_setting
    FOR EACH ROW EXECUTE FUNCTION {schema}.pgqueue_group_changed();
