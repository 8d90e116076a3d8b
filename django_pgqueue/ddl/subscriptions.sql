-- Subscriptions: queues that read another queue's messages, their source (docs/subscriptions.md).
--
-- A subscription has a position in its source. The order is that of the sending transactions' ids,
-- then of the messages' ids, within what had committed when a round began: transactions commit in
-- another order than they get their ids, and a message that commits late must not be passed over.
-- Passed is what the snapshot ``since`` shows; and, while a round is under way, what the snapshot
-- ``until`` shows up to the key (after_xid, after_id).

CREATE TABLE pgqueue_cursor (
    -- A move deletes the row and inserts the next number. An updated row would have a chain of dead
    -- versions, which each read walks while an old snapshot is held (PgQ, issue 61).
    number bigint NOT NULL DEFAULT 1,
    after_xid bigint NOT NULL DEFAULT 0,
    after_id bigint NOT NULL DEFAULT 0,
    -- The last message that was passed: where to begin again in another system.
    last_id bigint NOT NULL DEFAULT 0,
    -- The database system whose transactions the snapshots name.
    system bigint NOT NULL,
    -- How many messages the subscription has lost, and how many of them a signal has told.
    lost bigint NOT NULL DEFAULT 0,
    told bigint NOT NULL DEFAULT 0,
    queue_id integer NOT NULL,
    since pg_snapshot NOT NULL,
    until pg_snapshot,
    PRIMARY KEY (queue_id, number)
) WITH (autovacuum_vacuum_threshold = 1000, {vacuum});

-- Whether a snapshot shows what a transaction wrote, if it has committed.
CREATE FUNCTION {schema}.pgqueue_shows(snapshot pg_snapshot, xid bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot(xid::text::xid8, snapshot);

-- Whether a message that is visible now lies before a position.
CREATE FUNCTION {schema}.pgqueue_passed(place {schema}.pgqueue_cursor, xid bigint, id bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN {schema}.pgqueue_shows((place).since, xid)
    OR (place).until IS NOT NULL AND (xid, id) <= ((place).after_xid, (place).after_id)
       AND {schema}.pgqueue_shows((place).until, xid);

-- What this transaction sees, its own messages too: for a read in the transaction of a test.
CREATE FUNCTION {schema}.pgqueue_own_snapshot() RETURNS pg_snapshot LANGUAGE sql STABLE AS $$
    SELECT concat(
        least(pg_snapshot_xmin(s)::text::bigint, own), ':',
        greatest(pg_snapshot_xmax(s)::text::bigint, own + 1), ':',
        (SELECT string_agg(x::text, ',' ORDER BY x) FROM (
             SELECT x::text::bigint AS x FROM pg_snapshot_xip(s) x
             UNION SELECT generate_series(pg_snapshot_xmax(s)::text::bigint, own - 1)) x
         WHERE x <> own))::pg_snapshot
    FROM (SELECT pg_current_snapshot() AS s, pg_current_xact_id()::text::bigint AS own) o
$$;

-- A message that leaves its source while a subscription needs it becomes one of the subscription's
-- own. This trigger is on the tables of each source, and on the parent of all queues.
--
-- Unread messages are copied under the lock of the position: a read that has seen them moves it,
-- and this waits for that read, or that read finds the position gone and reads again. Messages in a
-- lease are copied under the lock of the lease, and get rows of deferred. The shared lock keeps
-- pgqueue_seek and new subscriptions out until this transaction ends, since what they would make
-- unread again is leaving.
--
-- Not copied, but counted as lost: messages older than the subscription's keep_for.
CREATE FUNCTION {schema}.pgqueue_message_left() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reader record;
    place {schema}.pgqueue_cursor;
    unread bigint[];
    old bigint;
    erased boolean := current_setting('pgqueue.erase', true) IS NOT DISTINCT FROM 'on';
    left_ids bigint[];
    lease record;
BEGIN
    -- Before the query for the subscriptions, which must see one that has kept this waiting.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('pgqueue.source', s.id))
    FROM (SELECT DISTINCT g.queue_id AS id FROM gone g ORDER BY id) s;
    FOR reader IN
        SELECT q.id, q.source_id, s.name AS source,
               statement_timestamp() - q.keep_for AS kept_from
        FROM {schema}.pgqueue_queue q JOIN {schema}.pgqueue_queue s ON s.id = q.source_id
        WHERE q.source_id IN (SELECT g.queue_id FROM gone g)
        ORDER BY q.id
    LOOP
        LOOP
            SELECT * INTO place FROM {schema}.pgqueue_cursor c
            WHERE c.queue_id = reader.id ORDER BY c.number DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            unread := ARRAY(
                SELECT g.id FROM gone g
                WHERE g.queue_id = reader.source_id
                  -- A position of another system says nothing about messages sent since a restore.
                  AND (NOT {schema}.pgqueue_passed(place, g.enqueued_xid, g.id)
                       OR g.id > place.last_id
                          AND place.system <> (SELECT system_identifier FROM pg_control_system()))
                  AND (g.expires_at > statement_timestamp()) IS NOT FALSE
                  AND g.headers #>> '{x-dead-letter,source}' IS DISTINCT FROM reader.source::text);
            EXIT WHEN unread = '{}';
            DELETE FROM {schema}.pgqueue_cursor c
            WHERE c.queue_id = reader.id AND c.number = place.number
            RETURNING * INTO place;
            CONTINUE WHEN NOT FOUND;
            SELECT count(*) INTO old FROM gone g
            WHERE NOT erased AND g.queue_id = reader.source_id AND g.id = ANY(unread)
              AND g.enqueued_at < reader.kept_from;
            place.number := place.number + 1;
            place.lost := place.lost + old;
            INSERT INTO {schema}.pgqueue_cursor SELECT place.*;
            EXIT WHEN erased;
            EXECUTE format(
                'INSERT INTO {schema}.pgqueue_message_q%1$s (queue_id, {copied_columns}) '
                'SELECT %1$s, {copied_columns} FROM gone WHERE queue_id = %2$s AND id = ANY($1) '
                'AND (enqueued_at >= $2) IS NOT FALSE AND NOT EXISTS ('
                '    SELECT FROM {schema}.pgqueue_archive_q%2$s a '
                '    WHERE a.id = gone.id AND a.state IN (''CANCELLED'', ''REPLACED'')) '
                'ON CONFLICT DO NOTHING', reader.id, reader.source_id)
            USING unread, reader.kept_from;
            EXIT;
        END LOOP;

        left_ids := ARRAY(SELECT g.id FROM gone g WHERE g.queue_id = reader.source_id);
        -- Again, until no lease has them: one that was split while this waited for it has a row that
        -- this query could not see.
        WHILE EXISTS (SELECT FROM {schema}.pgqueue_lease l
                      WHERE l.queue_id = reader.id AND l.ids && left_ids) LOOP
            FOR lease IN
                SELECT * FROM {schema}.pgqueue_lease l
                WHERE l.queue_id = reader.id AND l.ids && left_ids
                -- As an ack locks them (engine/subscriptions/held.sql): no deadlock.
                ORDER BY l.head
                FOR UPDATE
            LOOP
                PERFORM {schema}.pgqueue_leave_lease(
                    lease.head, reader.id, lease.read_at, left_ids);
                CONTINUE WHEN erased;
                EXECUTE format(
                    'WITH kept AS ('
                    '    INSERT INTO {schema}.pgqueue_message_q%1$s (queue_id, {copied_columns}) '
                    '    SELECT %1$s, {copied_columns} FROM gone WHERE queue_id = %2$s AND id = ANY($1) '
                    '    ON CONFLICT DO NOTHING RETURNING id, enqueued_at, priority, scheduled_at) '
                    -- As in engine/subscriptions/rows.sql.
                    'INSERT INTO {schema}.pgqueue_deferred (id, vt, enqueued_at, first_read_at, '
                    '    last_read_at, queue_id, read_ct, process_id, priority, state) '
                    'SELECT id, CASE WHEN early THEN scheduled_at ELSE $2 END, enqueued_at, '
                    '    CASE WHEN NOT early THEN $3 END, CASE WHEN NOT early THEN $3 END, %1$s, '
                    '    CASE WHEN early THEN 0 ELSE 1 END, CASE WHEN NOT early THEN $4 END, priority, '
                    '    CASE WHEN early THEN ''SCHEDULED'' ELSE ''PROCESSING'' END '
                    'FROM kept CROSS JOIN LATERAL (SELECT (scheduled_at > $3) IS TRUE AS early) e',
                    reader.id, reader.source_id)
                USING lease.ids, lease.vt, lease.read_at, lease.process_id;
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_message_left() FROM PUBLIC;

-- Removes messages from a batch lease. The others stay leased.
CREATE FUNCTION {schema}.pgqueue_leave_lease(
    lease_head bigint, reader integer, at timestamptz, leaving bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.pgqueue_lease l
    SET (ids, enqueued_ats) = (
        SELECT array_agg(m.id ORDER BY m.id), array_agg(m.enqueued_at ORDER BY m.id)
        FROM unnest(l.ids, l.enqueued_ats) AS m (id, enqueued_at) WHERE m.id <> ALL(leaving))
    WHERE l.head = lease_head AND l.queue_id = reader AND l.read_at = at
      AND NOT l.ids <@ leaving;
    DELETE FROM {schema}.pgqueue_lease l
    WHERE l.head = lease_head AND l.queue_id = reader AND l.read_at = at AND l.ids <@ leaving;
END
$$;

CREATE TRIGGER pgqueue_message_left
    AFTER DELETE ON {schema}.pgqueue_message
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_message_left();

-- Empties the positions when a test suite's flush truncates the queues (truncate.sql).
CREATE FUNCTION {schema}.pgqueue_positions_truncated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    TRUNCATE {schema}.pgqueue_cursor;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_positions_truncated() FROM PUBLIC;

CREATE TRIGGER pgqueue_positions_truncated
    AFTER TRUNCATE ON {schema}.pgqueue_queue
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pgqueue_positions_truncated();

-- Instead of pgqueue_message_inserted (send.sql), on the tables of a subscription. Messages that the
-- same statement gave a row of deferred have their place. The others were copied unread, or sent back
-- from a dead-letter queue. Groups are not kept in order.
CREATE FUNCTION {schema}.pgqueue_message_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM inserted) THEN
        RETURN NULL;
    END IF;
    WITH new AS (
        SELECT i.id, i.enqueued_at, i.queue_id, i.priority, i.scheduled_at::timestamptz AS at
        FROM inserted i
        WHERE NOT EXISTS (
            SELECT FROM {schema}.pgqueue_deferred d
            WHERE d.id = i.id AND d.queue_id = i.queue_id AND d.enqueued_at = i.enqueued_at)
    ),
    later AS (
        INSERT INTO {schema}.pgqueue_deferred (id, vt, enqueued_at, queue_id, priority, state)
        SELECT id, at, enqueued_at, queue_id, priority, 'SCHEDULED' FROM new
        WHERE at > statement_timestamp()
    )
    INSERT INTO {schema}.pgqueue_ready (id, turn, enqueued_at, queue_id, priority)
    SELECT id, id << 20, enqueued_at, queue_id, priority FROM new
    WHERE (at > statement_timestamp()) IS NOT TRUE;
    PERFORM {schema}.pgqueue_wake(i.queue_id) FROM inserted i GROUP BY i.queue_id;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_message_kept() FROM PUBLIC;

-- What pgqueue_fall_asleep (wake.sql) does, for a reader of a subscription: sends to the source
-- notify, and so does what becomes the subscription's own. due is 0 if the source has unread messages.
CREATE FUNCTION {schema}.pgqueue_reader_asleep(
    reader integer, source integer, heard integer[], INOUT doubt bigint, OUT due double precision
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    own double precision;
    place {schema}.pgqueue_cursor;
    unread boolean;
BEGIN
    own := (SELECT f.due FROM {schema}.pgqueue_fall_asleep(reader, heard, 0) f);
    doubt := (SELECT f.doubt FROM {schema}.pgqueue_fall_asleep(source, heard, doubt) f);
    SELECT * INTO place FROM {schema}.pgqueue_cursor c
    WHERE c.queue_id = reader ORDER BY c.number DESC LIMIT 1;
    unread := place.until IS NOT NULL;
    IF NOT unread THEN
        EXECUTE format(
            'SELECT (SELECT true FROM {schema}.pgqueue_message_q%1$s '
            '        WHERE enqueued_xid >= $1 ORDER BY enqueued_xid, id LIMIT 1) IS NOT NULL '
            'OR EXISTS (SELECT FROM unnest($2) x (xid) CROSS JOIN LATERAL ('
            '    SELECT FROM {schema}.pgqueue_message_q%1$s m WHERE m.enqueued_xid = x.xid '
            '    ORDER BY m.id LIMIT 1) m)', source)
        INTO unread
        USING pg_snapshot_xmax(place.since)::text::bigint,
              ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(place.since) x);
    END IF;
    due := CASE WHEN unread THEN 0 ELSE own END;
END
$$;

-- Reverse

-- Subscriptions become ordinary queues, with the messages that are their own.
DO $$
DECLARE
    number integer;
BEGIN
    FOR number IN SELECT id FROM {schema}.pgqueue_queue WHERE source_id IS NOT NULL LOOP
        EXECUTE format('DROP TRIGGER pgqueue_message_kept ON {schema}.pgqueue_message_q%s', number);
        EXECUTE format(
            'CREATE TRIGGER pgqueue_message_inserted AFTER INSERT ON {schema}.pgqueue_message_q%s '
            'REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT '
            'EXECUTE FUNCTION {schema}.pgqueue_message_inserted()', number);
        DELETE FROM {schema}.pgqueue_lease WHERE queue_id = number;
    END LOOP;
END
$$;
DROP TRIGGER pgqueue_message_left ON {schema}.pgqueue_message;
DROP TRIGGER pgqueue_positions_truncated ON {schema}.pgqueue_queue;
