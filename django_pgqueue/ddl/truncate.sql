-- A test suite's flush truncates the tables of all models. The live tables have no models, so this
-- trigger empties them when the queues are truncated. The queues' partitions remain. A send to a
-- truncated queue reports that the queue does not exist.
CREATE FUNCTION {schema}.pgqueue_queues_truncated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval(oid, 1, false) FROM pg_class
    WHERE relkind = 'S' AND relnamespace = TG_TABLE_SCHEMA::regnamespace
      AND relname ~ '^pgqueue_wake_q[0-9]+$';
    TRUNCATE {schema}.pgqueue_ready, {schema}.pgqueue_deferred, {schema}.pgqueue_lease,
        {schema}.pgqueue_waiting, {schema}.pgqueue_group, {schema}.pgqueue_recheck,
        {schema}.pgqueue_claim, {schema}.pgqueue_unlogged;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_queues_truncated() FROM PUBLIC;

CREATE TRIGGER pgqueue_queues_truncated
    AFTER TRUNCATE ON {schema}.pgqueue_queue
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_queues_truncated();
