-- For operators: repairs after a switch-over, a restore or an insert without triggers.

-- Advances the sequences of our tables beyond the existing rows. Logical replication copies rows
-- but no sequences: without this, a promoted subscriber would assign ids twice. Never moves a
-- sequence back. spare is the number of ids to skip in addition, for messages that were sent and
-- deleted.
CREATE FUNCTION {schema}.pgqueue_advance_ids(spare bigint DEFAULT 0)
RETURNS TABLE (sequence_name text, reached bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own record;
    highest bigint;
BEGIN
    IF spare IS NULL OR spare NOT BETWEEN 0 AND 1000000000000 THEN
        RAISE EXCEPTION 'pgqueue: spare must be the number of ids to skip, from 0 to 10^12, not %', spare;
    END IF;
    FOR own IN
        SELECT a.attrelid::regclass AS owner, quote_ident(a.attname) AS column_name,
               pg_get_serial_sequence(a.attrelid::regclass::text, a.attname) AS sequence,
               c.relname = 'pgqueue_message' AS is_message
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relname ~ '^pgqueue_'
          AND (a.attidentity <> '' OR c.relname = 'pgqueue_message' AND a.attname = 'id')
    LOOP
        EXECUTE format('SELECT max(%s) FROM %s', own.column_name, own.owner) INTO highest;
        IF own.is_message THEN
            highest := greatest(highest, (SELECT max(id) FROM {schema}.pgqueue_archive)) + spare;
        END IF;
        IF highest > coalesce(pg_sequence_last_value(own.sequence::regclass), 0) THEN
            PERFORM setval(own.sequence::regclass, highest);
        END IF;
        sequence_name := own.sequence;
        reached := pg_sequence_last_value(own.sequence::regclass);
        RETURN NEXT;
    END LOOP;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_advance_ids(bigint) FROM PUBLIC;

-- Finds messages that are in no live table and not in the archive. An INSERT under
-- session_replication_role = replica makes such messages, since it fires no trigger. This function
-- inserts each into the live table that a send would have chosen. It examines the next batch of
-- messages after an id; call it again with its result "last" until "looked" is 0. Sends and reads
-- may run meanwhile.
CREATE FUNCTION {schema}.pgqueue_place_missing(
    queue_number integer, after bigint DEFAULT 0, batch integer DEFAULT 10000,
    OUT looked bigint, OUT placed bigint, OUT last bigint)
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    ids bigint[];
    enqueued_ats timestamptz[];
    scheduled_ats timestamptz[];
    priorities smallint[];
    groups text[];
BEGIN
    PERFORM FROM {schema}.pgqueue_queue WHERE id = queue_number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pgqueue: queue % does not exist', queue_number USING ERRCODE = 'PQ404';
    END IF;
    IF after IS NULL OR batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION 'pgqueue: after must be an id, such as 0, and batch 1 or more, not % and %',
            after, batch;
    END IF;
    -- A second call must see the messages that the first one placed.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'pgqueue_place_missing needs the isolation level READ COMMITTED';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('pgqueue.place_missing', queue_number));

    -- One statement reads all tables with one snapshot: a commit may move a message between tables.
    EXECUTE format($query$
        WITH looked AS MATERIALIZED (
            SELECT id, enqueued_at, scheduled_at, priority, group_key,
                   group_key IS NOT NULL OR scheduled_at > statement_timestamp() AS later
            FROM {schema}.pgqueue_message_q%1$s WHERE id > $1
            ORDER BY id FETCH FIRST ($2) ROWS WITH TIES
        ),
        missing AS MATERIALIZED (
            SELECT * FROM looked m
            WHERE (SELECT true FROM {schema}.pgqueue_ready r
                   WHERE r.queue_id = %1$s AND -r.priority = -m.priority
                     AND r.turn = coalesce(
                         (SELECT g.turn FROM {schema}.pgqueue_group g
                          WHERE g.queue_id = %1$s AND g.group_key = m.group_key AND g.head = m.id
                          LIMIT 1), m.id << 20)
                     AND r.id = m.id AND r.enqueued_at = m.enqueued_at LIMIT 1) IS NULL
              AND (SELECT true FROM {schema}.pgqueue_deferred d
                   WHERE d.id = m.id AND d.queue_id = %1$s AND d.enqueued_at = m.enqueued_at) IS NULL
              AND (SELECT true FROM {schema}.pgqueue_lease l
                   WHERE int8range(l.head, l.tail, '[]') @> m.id AND l.queue_id + 0 = %1$s
                     AND m.id = ANY(l.ids) LIMIT 1) IS NULL
              AND (SELECT true FROM {schema}.pgqueue_waiting w
                   WHERE w.queue_id = %1$s AND w.group_key = m.group_key AND w.id = m.id
                     AND w.enqueued_at = m.enqueued_at) IS NULL
              AND (SELECT true FROM {schema}.pgqueue_archive_q%1$s a
                   WHERE a.id = m.id AND a.queue_id = %1$s AND a.enqueued_at = m.enqueued_at) IS NULL
        ),
        ready AS (
            INSERT INTO {schema}.pgqueue_ready (id, turn, enqueued_at, queue_id, priority)
            SELECT id, id << 20, enqueued_at, %1$s, priority FROM missing
            WHERE later IS NOT TRUE
        )
        SELECT (SELECT count(*) FROM looked), count(*), (SELECT max(id) FROM looked),
               array_agg(id) FILTER (WHERE later), array_agg(enqueued_at) FILTER (WHERE later),
               array_agg(scheduled_at) FILTER (WHERE later),
               array_agg(priority) FILTER (WHERE later), array_agg(group_key) FILTER (WHERE later)
        FROM missing
        $query$, queue_number)
    INTO looked, placed, last, ids, enqueued_ats, scheduled_ats, priorities, groups
    USING after, batch;

    IF placed > 0 THEN
        PERFORM {schema}.pgqueue_sent(
            queue_number, ids, enqueued_ats, scheduled_ats, priorities, groups);
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_place_missing(integer, bigint, integer) FROM PUBLIC;
