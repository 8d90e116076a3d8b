-- PGMQ's public functions. They call functions that statements.py generates from the engine's
-- statements. docs/pgmq.md lists the differences from PGMQ.
--
-- A function whose name begins with _ is internal. It runs only within calls of public functions,
-- which have a fixed search path. Parameters have PGMQ's names. Bodies write $1, $2 instead, where
-- a column would hide a parameter with the same name.

DO $do$
BEGIN
    IF to_regtype('pgmq._opened') IS NULL THEN
        CREATE TYPE pgmq._opened AS (
            id integer, name text, base bigint, max_deliveries integer, dead_id integer,
            is_limited boolean
        );
        -- A row that engine/read/read.sql returns, without the columns of the message itself.
        CREATE TYPE pgmq._delivery AS (
            note text, id bigint, read_ct integer, read_at bigint, enqueued_at timestamptz,
            priority smallint, group_key text, attempts integer, vt bigint, first_read_at bigint
        );
    END IF;
END
$do$;

{statements}

-- ------------------------------------------------------------------ queues

-- Returns the queue with this name, ignoring case. Raises PGMQ's errors for a queue that does not
-- exist, a time that is NULL (has_time is false), or a negative LIMIT (qty), and an error for a
-- subscription, whose messages are in another queue.
CREATE OR REPLACE FUNCTION pgmq._open(
    queue_name text, has_time boolean DEFAULT true, qty bigint DEFAULT 0
) RETURNS pgmq._opened LANGUAGE plpgsql AS $$
DECLARE
    opened pgmq._opened;
    is_unlogged boolean;
    is_subscription boolean;
BEGIN
    SELECT q.id, q.name, coalesce(o.base, 0), q.max_deliveries, q.dead_letter_queue_id, q.unlogged,
           q.has_slots OR num_nonnulls(q."limit", q.rate) > 0, q.source_id IS NOT NULL
    INTO opened.id, opened.name, opened.base, opened.max_deliveries, opened.dead_id, is_unlogged,
         opened.is_limited, is_subscription
    FROM pgqueue_queue q
    LEFT JOIN pgmq.own_queue o ON o.queue_id = q.id AND o.created_at = q.created_at
    WHERE lower(q.name) = lower($1);
    IF NOT FOUND THEN
        PERFORM pgmq.format_table_name($1, 'q');
        RAISE EXCEPTION 'relation "pgmq.q_%" does not exist', lower($1)
            USING ERRCODE = 'undefined_table', HINT = 'Make the queue: SELECT pgmq.create(...)';
    ELSIF NOT $2 THEN
        RAISE EXCEPTION 'null value in column "vt" of relation "q_%" violates not-null constraint',
            lower($1) USING ERRCODE = 'not_null_violation';
    ELSIF $3 < 0 THEN
        RAISE EXCEPTION 'LIMIT must not be negative' USING ERRCODE = '2201W';
    END IF;
    IF is_subscription THEN
        PERFORM pgmq._refuse_subscription(opened.name);
    END IF;
    IF is_unlogged THEN
        PERFORM pgqueue_clear_lost(opened.id);  -- deletes what a server crash left behind
    END IF;
    RETURN opened;
END
$$;

CREATE OR REPLACE FUNCTION pgmq._refuse_subscription(queue_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" is a subscription, which has no functions of PGMQ', $1
        USING ERRCODE = 'feature_not_supported',
            HINT = 'Send to its source. Read it with queue(...).read() of django_pgqueue.';
END
$$;

CREATE OR REPLACE FUNCTION pgmq.format_table_name(queue_name text, prefix text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF $1 ~ '\$|;|--|''' THEN
        RAISE EXCEPTION 'queue name contains invalid characters: $, ;, --, or \''';
    END IF;
    RETURN lower($2 || '_' || $1);
END
$$;

CREATE OR REPLACE FUNCTION pgmq.validate_queue_name(queue_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF length($1) > 47 THEN
        RAISE EXCEPTION 'queue name is too long, maximum length is 47 characters';
    END IF;
    PERFORM pgmq.format_table_name($1, 'q');
    IF $1 !~ '^[A-Za-z0-9_.-]+$' THEN
        RAISE EXCEPTION 'queue name "%" is not valid: use 1 to 47 of A-Z a-z 0-9 _ . -', $1;
    END IF;
END
$$;

-- Makes a queue's own tables. client_min_messages hides the notices of DROP TABLE IF EXISTS.
CREATE OR REPLACE FUNCTION pgmq._tables(made integer, is_unlogged boolean) RETURNS void
LANGUAGE plpgsql SET client_min_messages = warning AS $$
DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY CASE WHEN $2 THEN {create_unlogged} ELSE {create_logged} END LOOP
        EXECUTE format(statement, made);
    END LOOP;
    FOR statement IN {inherited} LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgmq._create(queue_name text, is_unlogged boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    made integer;
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'queue name cannot be NULL';
    END IF;
    PERFORM pgmq.validate_queue_name($1);
    INSERT INTO pgqueue_queue ({columns}, name, unlogged) VALUES ({values}, $1, $2)
    ON CONFLICT DO NOTHING RETURNING id INTO made;
    IF made IS NULL THEN
        RAISE NOTICE 'queue "%" already exists, skipping', $1;
    ELSE
        PERFORM pgmq._tables(made, $2);
        DELETE FROM pgmq.own_queue o WHERE NOT EXISTS (
            SELECT FROM pgqueue_queue q WHERE q.id = o.queue_id AND q.created_at = o.created_at);
        INSERT INTO pgmq.own_queue (queue_id, created_at, base)
        SELECT q.id, q.created_at, (
            SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM pgqueue_message_id_seq)
        FROM pgqueue_queue q WHERE q.id = made;
    END IF;
    PERFORM pgmq._views($1);
    RETURN made;
END
$$;

-- Makes the views q_ and a_ of a queue. They select from functions, because PostgreSQL refuses to
-- drop tables on which there are views.
CREATE OR REPLACE FUNCTION pgmq._views(queue_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
    name text;
    source text;
BEGIN
    FOR name, source IN VALUES ('q_', 'live_messages'), ('a_', 'archived_messages') LOOP
        name := name || lower($1);
        EXECUTE format('CREATE OR REPLACE VIEW pgmq.%I AS SELECT * FROM pgmq.%I(%s, %s)',
                       name, source, q.id, q.base);
        EXECUTE format('CREATE OR REPLACE TRIGGER pgmq_read_only INSTEAD OF INSERT OR UPDATE OR DELETE '
                       'ON pgmq.%I FOR EACH ROW EXECUTE FUNCTION pgmq.refuse_change()', name);
        EXECUTE format('GRANT SELECT ON pgmq.%I TO PUBLIC', name);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pgmq.% is a read-only view', TG_TABLE_NAME USING
        ERRCODE = 'feature_not_supported',
        HINT = 'Use pgmq.send, pgmq.set_vt, pgmq.delete and pgmq.archive.';
END
$$;

CREATE OR REPLACE FUNCTION pgmq._exists(queue_id integer) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM FROM pgqueue_queue q WHERE q.id = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pgqueue: queue % does not exist', $1 USING ERRCODE = 'PQ404';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.live_messages(queue_id integer, base bigint) RETURNS TABLE (
    msg_id bigint, read_ct integer, enqueued_at timestamptz, last_read_at timestamptz,
    vt timestamptz, message jsonb, headers jsonb
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgmq._exists($1);
    RETURN QUERY EXECUTE format(
        $q$SELECT l.id - $1, l.read_ct, l.enqueued_at, l.last_read_at, l.vt, m.body::jsonb,
                m.headers::jsonb
         FROM ({live}) l
         JOIN pgqueue_message_q%1$s m ON m.id = l.id AND m.enqueued_at = l.enqueued_at
         WHERE l.queue_id = %1$s$q$, $1) USING $2;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.archived_messages(queue_id integer, base bigint) RETURNS TABLE (
    msg_id bigint, read_ct integer, enqueued_at timestamptz, last_read_at timestamptz,
    archived_at timestamptz, vt timestamptz, message jsonb, headers jsonb
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgmq._exists($1);
    RETURN QUERY EXECUTE format(
        'SELECT a.id - $1, a.read_ct, a.enqueued_at, a.last_read_at, a.archived_at, a.archived_at,
                m.body::jsonb, m.headers::jsonb
         FROM pgqueue_archive_q%1$s a
         JOIN pgqueue_message_q%1$s m ON m.id = a.id AND m.enqueued_at = a.enqueued_at', $1) USING $2;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.create_non_partitioned(queue_name text) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM pgmq._create($1, false); END $$;

CREATE OR REPLACE FUNCTION pgmq.create(queue_name text) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM pgmq._create($1, false); END $$;

CREATE OR REPLACE FUNCTION pgmq.create_unlogged(queue_name text) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN PERFORM pgmq._create($1, true); END $$;

-- Converts a length of time, with the limits of create_queue. NULL for a number of messages.
CREATE OR REPLACE FUNCTION pgmq._span(argument text, given text) RETURNS interval
LANGUAGE plpgsql AS $$
DECLARE
    span interval := CASE WHEN $2 !~ '^\d+$' THEN $2::interval END;
BEGIN
    IF span NOT BETWEEN {span} THEN
        RAISE EXCEPTION '% must be from a second to a thousand years, got: %', $1, $2;
    END IF;
    RETURN span;
END
$$;

-- Ignores intervals that are numbers of messages: partitions and retention are by time.
CREATE OR REPLACE FUNCTION pgmq.create_partitioned(
    queue_name text, partition_interval text DEFAULT '10000',
    retention_interval text DEFAULT '100000', premake integer DEFAULT 4
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    every interval := pgmq._span('partition_interval', $2);
    kept interval := pgmq._span('retention_interval', $3);
    made integer := pgmq._create($1, false);
BEGIN
    UPDATE pgqueue_queue SET retention = kept WHERE id = made AND kept IS NOT NULL;
    RAISE NOTICE 'queue "%" has no partitions yet: run manage.py pgqueue_partition % --interval %s',
        $1, $1, coalesce(extract(epoch FROM every)::bigint, 86400);
END
$$;

-- Renames and pauses the queue, and leaves its tables to the next maintenance: dropping them would
-- lock tables that other queues share. Until then a trigger refuses sends from Django processes
-- that have the queue in their cache.
CREATE OR REPLACE FUNCTION pgmq.drop_queue(queue_name text) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    q record;
    sources text;
BEGIN
    PERFORM pgmq.format_table_name($1, 'q');
    SELECT id, name, created_at, source_id INTO q FROM pgqueue_queue
    WHERE lower(name) = lower($1) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE NOTICE 'pgmq queue `%` does not exist', $1;
        RETURN false;
    END IF;
    IF q.source_id IS NOT NULL THEN
        PERFORM pgmq._refuse_subscription(q.name);
    END IF;
    SELECT string_agg(name, ', ') INTO sources FROM pgqueue_queue WHERE source_id = q.id;
    IF sources IS NOT NULL THEN
        RAISE EXCEPTION 'queue "%" is the source of %: drop these subscriptions first', $1, sources;
    END IF;
    SELECT string_agg(name, ', ') INTO sources FROM pgqueue_queue
    WHERE dead_letter_queue_id = q.id AND id <> q.id;
    IF sources IS NOT NULL THEN
        RAISE EXCEPTION 'queue "%" is the dead-letter queue of %: drop these queues first',
            $1, sources;
    END IF;
    EXECUTE format('DROP VIEW IF EXISTS pgmq.%I, pgmq.%I', 'q_' || lower($1), 'a_' || lower($1));
    DELETE FROM pgmq.topic_bindings WHERE lower(queue_name) = lower($1);
    EXECUTE format('CREATE TRIGGER pgmq_dropped BEFORE INSERT ON pgqueue_message_q%s FOR EACH ROW '
                   'EXECUTE FUNCTION pgmq.refuse_send()', q.id);
    UPDATE pgqueue_queue SET name = 'dropped-' || id, paused = true WHERE id = q.id;
    INSERT INTO pgmq.own_queue (queue_id, created_at, dropped) VALUES (q.id, q.created_at, true)
    ON CONFLICT (queue_id) DO UPDATE SET created_at = excluded.created_at, dropped = true;
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.refuse_send() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pgqueue: queue % does not exist', NEW.queue_id USING ERRCODE = 'PQ404';
END
$$;

CREATE OR REPLACE FUNCTION pgmq.drop_queue(queue_name text, partitioned boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RAISE WARNING 'drop_queue(queue_name, partitioned) is deprecated and will be removed in PGMQ v2.0. Use drop_queue(queue_name) instead';
    PERFORM pgmq.drop_queue($1);
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.list_queues() RETURNS SETOF pgmq.queue_record
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT q.name, q.partition_interval IS NOT NULL, q.unlogged, q.created_at
    FROM pgqueue_queue q LEFT JOIN pgmq.own_queue o
        ON o.queue_id = q.id AND o.created_at = q.created_at
    WHERE o.dropped IS NOT TRUE AND q.source_id IS NULL ORDER BY q.id;
END
$$;

CREATE OR REPLACE VIEW pgmq.meta AS SELECT * FROM pgmq.list_queues();

CREATE OR REPLACE FUNCTION pgmq.purge_queue(queue_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
    purged bigint := 0;
    batch bigint;
BEGIN
    LOOP
        SELECT p.number INTO batch FROM pgmq._purge(q.id, 50000) p;
        purged := purged + batch;
        EXIT WHEN batch = 0;
    END LOOP;
    IF purged > 0 THEN
        PERFORM pgqueue_audit('purge', q.id, NULL, '{}', purged);
    END IF;
    RETURN purged;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.detach_archive(queue_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE WARNING 'detach_archive(queue_name) is deprecated and is a no-op. It will be removed in PGMQ v2.0. Archive tables are no longer member objects.';
END
$$;

CREATE OR REPLACE FUNCTION pgmq.convert_archive_partitioned(
    table_name text, partition_interval text DEFAULT '10000',
    retention_interval text DEFAULT '100000', leading_partition integer DEFAULT 10
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'use manage.py pgqueue_partition, which partitions a queue and its archive'
        USING ERRCODE = 'feature_not_supported';
END
$$;

-- Only checks that the queue exists: grouped reads use indexes that every queue has.
CREATE OR REPLACE FUNCTION pgmq.create_fifo_index(queue_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgmq._open($1);
END
$$;

CREATE OR REPLACE FUNCTION pgmq.create_fifo_indexes_all() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
END
$$;

-- ------------------------------------------------------------------ send

CREATE OR REPLACE FUNCTION pgmq._group(headers jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif($1 ->> 'x-pgmq-group', '')
$$;

-- Returns the time that a delay given as text means: whole seconds from now, or a time.
CREATE OR REPLACE FUNCTION pgmq._moment(delay text) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN $1 ~ '^\s*[+-]?\d+\s*$' THEN clock_timestamp() + make_interval(secs => $1::integer)
                ELSE $1::timestamptz END;
END
$$;

-- Without headers and delay, the INSERT omits these columns: then the server does not check them,
-- and plans the statement faster.
CREATE OR REPLACE FUNCTION pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz)
RETURNS SETOF bigint LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    q pgmq._opened := pgmq._open($1, $4 IS NOT NULL);
BEGIN
    IF $3 IS NULL AND $4 <= clock_timestamp() THEN
        RETURN QUERY EXECUTE format(
            'INSERT INTO pgqueue_message_q%s (queue_id, body) VALUES (%1$s, $1) RETURNING id - $2', q.id)
        USING $2, q.base;
    ELSE
        RETURN QUERY SELECT s.id - q.base FROM pgmq._send(
            q.id, p_at => CASE WHEN $4 > clock_timestamp() THEN $4 END, p_body => $2,
            p_headers => $3, p_group => pgmq._group($3), p_priority => 0::smallint) s;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgmq._validate_batch_params(msgs jsonb[], headers jsonb[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF $1 IS NULL OR cardinality($1) = 0 THEN
        RAISE EXCEPTION 'msgs cannot be NULL or empty';
    END IF;
    IF $2 IS NOT NULL AND cardinality($2) <> cardinality($1) THEN
        RAISE EXCEPTION 'headers array length (%) must match msgs array length (%)',
            cardinality($2), cardinality($1);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.send_batch(
    queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    q pgmq._opened := pgmq._open($1, $4 IS NOT NULL);
BEGIN
    PERFORM pgmq._validate_batch_params($2, $3);
    IF $3 IS NULL AND $4 <= clock_timestamp() THEN
        RETURN QUERY EXECUTE format(
            'INSERT INTO pgqueue_message_q%s (queue_id, body)
             SELECT %1$s, nullif(b.body, ''null'') FROM unnest($1) WITH ORDINALITY AS b (body, place)
             ORDER BY b.place RETURNING id - $2', q.id)
        USING $2, q.base;
    ELSE
        RETURN QUERY SELECT s.id - q.base FROM pgmq._send_batch(
            q.id, p_at => CASE WHEN $4 > clock_timestamp() THEN $4 END, p_bodies => to_jsonb($2),
            p_headers => to_jsonb($3), p_priority => 0::smallint,
            p_group => (SELECT array_agg(pgmq._group(h.header) ORDER BY h.place)
                        FROM unnest($3) WITH ORDINALITY AS h (header, place))) s;
    END IF;
END
$$;

-- ------------------------------------------------------------------ read

-- Returns whether there are due messages, expired leases or rechecks: then a read that takes only
-- ready messages would miss some, or take them in the wrong order. _take pins its plans.
CREATE OR REPLACE FUNCTION pgmq._due(queue_id integer, clock timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN coalesce(
        (SELECT true FROM pgqueue_deferred WHERE queue_id = $1 AND vt <= $2 ORDER BY vt LIMIT 1),
        (SELECT true FROM pgqueue_lease WHERE queue_id = $1 AND vt <= $2 ORDER BY vt LIMIT 1),
        (SELECT true FROM pgqueue_recheck WHERE queue_id = $1 ORDER BY id LIMIT 1), false);
END
$$;

-- Gives a head to groups that have none. Returns whether rechecks may be left. A transaction that
-- stays open keeps its locks. In such a transaction, this function makes only as many heads as the
-- read needs. It looks at each group that has a recheck until some have a new head that is due, as
-- engine/groups/heads.py does.
--
-- A function cannot find out whether its transaction stays open. This one assumes that a statement
-- is alone in its transaction if both began at the same time. A statement with parameters that is
-- not prepared does not count as alone: it gives heads to fewer groups. The assumption is wrong if a
-- client sends BEGIN and the read in one message, or reads in a DO block. Then, until that
-- transaction ends, other reads skip the queue's groups without a head, and a read in another open
-- transaction waits. No message is lost, and none overtakes another one of its group.
CREATE OR REPLACE FUNCTION pgmq._promote_some(queue_id integer, qty bigint, clock timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    alone boolean := statement_timestamp() = transaction_timestamp();
    most integer := CASE WHEN alone THEN 1000 ELSE least($2, 100) END;
    passed text[] := '{}';
    done record;
BEGIN
    LOOP
        done := pgmq._promote($1, p_alone => alone, p_batch => 1000, p_clock => $3,
                              p_groups => most, p_passed => passed);
        EXIT WHEN done.heads > 0 OR NOT done.more;
        passed := passed || done.passed;
        most := least(10 * most, CASE WHEN alone THEN 1000 ELSE 100 END);
    END LOOP;
    RETURN done.more;
END
$$;

-- Archives the taken messages that have expired. Returns the remaining ones.
CREATE OR REPLACE FUNCTION pgmq._in_time(q pgmq._opened, taken pgmq._delivery[], clock timestamptz)
RETURNS pgmq._delivery[] LANGUAGE plpgsql AS $$
DECLARE
    late bigint[];
    archived bigint[];
BEGIN
    IF cardinality(taken) > 0 THEN
        EXECUTE format(
            'SELECT array_agg(t.id) FROM unnest($1) t CROSS JOIN LATERAL (
                 SELECT FROM pgqueue_message_q%s m
                 WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at
                   AND m.expires_at::timestamptz <= $2 OFFSET 0) m', q.id)
        INTO late USING taken, clock;
    END IF;
    IF late IS NULL THEN
        RETURN taken;
    END IF;
    PERFORM pgmq._unfold(q.id, late);
    archived := ARRAY(SELECT e.id FROM pgmq._expire(q.id, p_ids => late) e);
    -- Archives popped messages that were ready: they have no row left that _expire could find.
    EXECUTE format(
        'INSERT INTO pgqueue_archive_q%s (id, enqueued_at, queue_id, read_ct, attempts, state)
         SELECT id, enqueued_at, %1$s, 0, 0, ''EXPIRED'' FROM unnest($1)
         WHERE id = ANY($2) AND id <> ALL($3)', q.id)
    USING taken, late, archived;
    RETURN ARRAY(SELECT t FROM unnest(taken) t WHERE t.id <> ALL(late) ORDER BY -t.priority, t.id);
END
$$;

-- Ends the messages that a read found without deliveries left, and sets back those that are not
-- heads of their groups. Returns whether it changed any: then the read has to be repeated.
CREATE OR REPLACE FUNCTION pgmq._act_on_notes(
    q pgmq._opened, found_ pgmq._delivery[], clock timestamptz
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    read_cts integer[];
    read_ats bigint[];
BEGIN
    SELECT array_agg(f.id), array_agg(f.read_ct), array_agg(f.read_at) INTO ids, read_cts, read_ats
    FROM unnest(found_) f WHERE f.note = 'exhausted';
    IF ids IS NOT NULL AND q.dead_id IS NULL THEN
        PERFORM pgmq._fail(
            q.id, p_ids => ids, p_read_cts => read_cts, p_read_ats => read_ats, p_ran => 0);
    ELSIF ids IS NOT NULL THEN
        PERFORM pgmq._dead_letter(
            q.id, q.dead_id, p_ids => ids, p_read_cts => read_cts, p_read_ats => read_ats,
            p_ran => 0, p_source => q.name, p_reason => 'max_deliveries');
    END IF;
    IF EXISTS (SELECT FROM unnest(found_) f WHERE f.note = 'blocked') THEN
        PERFORM FROM pgmq._set_back(q.id, 1000, clock);
        RETURN FOUND OR ids IS NOT NULL;
    END IF;
    RETURN ids IS NOT NULL;
END
$$;

-- Leases up to qty messages from the start of the queue. The result also has rows with notes.
CREATE OR REPLACE FUNCTION pgmq._sweep(
    q pgmq._opened, lease interval, qty bigint, conditional jsonb, heed boolean, clock timestamptz
) RETURNS pgmq._delivery[] LANGUAGE plpgsql AS $$
BEGIN
    IF conditional IS NULL AND q.is_limited THEN
        RETURN ARRAY(SELECT r FROM pgmq._read_limited(
            q.id, p_qty => qty, p_vt => lease, p_heed => heed,
            p_max_deliveries => q.max_deliveries, p_clock => clock) r);
    ELSIF conditional IS NULL THEN
        RETURN ARRAY(SELECT r FROM pgmq._read_due(
            q.id, p_qty => qty, p_vt => lease, p_heed => heed,
            p_max_deliveries => q.max_deliveries, p_clock => clock) r);
    ELSIF q.is_limited THEN
        RETURN ARRAY(SELECT r FROM pgmq._read_limited_matching(
            q.id, p_qty => qty, p_vt => lease, p_heed => heed, p_conditional => conditional,
            p_max_deliveries => q.max_deliveries, p_clock => clock) r);
    END IF;
    RETURN ARRAY(SELECT r FROM pgmq._read_matching(
        q.id, p_qty => qty, p_vt => lease, p_heed => heed, p_conditional => conditional,
        p_max_deliveries => q.max_deliveries, p_clock => clock) r);
END
$$;

-- Leases up to qty messages, as engine/read/reading.py does. If vt is NULL, pops them: deletes
-- their state, but not their bodies. All statements use the time in the parameter clock. Each lease
-- ends later than that, so no call finds a message twice. Ready messages in the result may have
-- expired: _records leaves them out, and the caller archives them by _in_time.
CREATE OR REPLACE FUNCTION pgmq._take(
    q pgmq._opened, vt integer, qty bigint, conditional jsonb DEFAULT NULL,
    clock timestamptz DEFAULT clock_timestamp()
) RETURNS pgmq._delivery[] LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    lease interval := greatest(make_interval(secs => $2), '1 microsecond');
    most bigint := coalesce(qty, 9223372036854775807);
    taken pgmq._delivery[] := '{}';
    found_ pgmq._delivery[];
    leased pgmq._delivery[];
    in_time pgmq._delivery[];
    heed boolean := true;
    rechecks_left boolean := false;
    again boolean := true;
BEGIN
    IF conditional IS NULL AND NOT q.is_limited THEN
        IF most >= 16 THEN
            PERFORM FROM pgqueue_group WHERE queue_id = q.id ORDER BY group_key LIMIT 1;
        END IF;
        IF $2 IS NULL THEN
            taken := ARRAY(SELECT t FROM pgmq._take_ready(q.id, p_qty => qty, p_clock => clock) t
                           ORDER BY -t.priority, t.id);
        ELSIF most < 16 OR FOUND THEN
            taken := ARRAY(SELECT t FROM pgmq._read_each(
                q.id, p_qty => qty, p_vt => lease, p_clock => clock) t ORDER BY -t.priority, t.id);
        ELSE
            taken := ARRAY(SELECT t FROM pgmq._read_batch(
                q.id, p_qty => qty, p_vt => lease, p_clock => clock) t ORDER BY -t.priority, t.id);
        END IF;
        IF cardinality(taken) >= most OR NOT pgmq._due(q.id, clock) THEN
            RETURN taken;
        END IF;
    END IF;
    WHILE again AND cardinality(taken) < most LOOP
        found_ := pgmq._sweep(q, lease, most - cardinality(taken), conditional, heed, clock);
        leased := ARRAY(SELECT f FROM unnest(found_) f WHERE f.note IS NULL);
        in_time := pgmq._in_time(q, leased, clock);
        taken := taken || in_time;
        again := pgmq._act_on_notes(q, found_, clock) OR cardinality(in_time) < cardinality(leased);
        -- A read that has enough messages needs no heads: the next read finds the rechecks.
        EXIT WHEN cardinality(taken) >= most;
        IF EXISTS (SELECT FROM unnest(found_) f WHERE f.note = 'recheck') THEN
            rechecks_left := pgmq._promote_some(q.id, most - cardinality(taken), clock);
            heed := false;
            again := true;
        ELSIF NOT again AND rechecks_left THEN
            rechecks_left := false;
            heed := true;
            again := true;
        END IF;
    END LOOP;
    IF $2 IS NULL THEN
        DELETE FROM pgqueue_deferred
        WHERE id = ANY(ARRAY(SELECT t.id FROM unnest(taken) t)) AND queue_id + 0 = q.id;
    END IF;
    RETURN ARRAY(SELECT t FROM unnest(taken) t ORDER BY -t.priority, t.id);
END
$$;

-- Returns deliveries as clients see them, without those that have expired. If popped, also deletes
-- the bodies, and read_ct does not count the pop. For a single message there is a simpler
-- statement, which is planned in a third of the time.
CREATE OR REPLACE FUNCTION pgmq._records(
    q pgmq._opened, taken pgmq._delivery[], clock timestamptz DEFAULT '-infinity',
    popped boolean DEFAULT false
) RETURNS SETOF pgmq.message_record LANGUAGE plpgsql AS $$
DECLARE
    own text := 'pgqueue_message_q' || q.id;
    one pgmq._delivery := taken[1];
BEGIN
    IF cardinality(taken) = 1 THEN
        RETURN QUERY EXECUTE format(
            CASE WHEN popped THEN 'DELETE FROM %s WHERE %s RETURNING %s'
                 ELSE 'SELECT %3$s FROM %1$s WHERE %2$s' END,
            own, 'id = $1 AND enqueued_at = $2 AND (expires_at::timestamptz <= $7) IS NOT TRUE',
            '$3, $4, $2, $5, $6, body::jsonb, headers::jsonb')
        USING one.id, one.enqueued_at, one.id - q.base, one.read_ct - popped::integer,
            CASE WHEN one.read_ct > popped::integer THEN to_timestamp(one.read_at / 1e6::float8) END,
            to_timestamp(CASE WHEN popped THEN one.read_at ELSE one.vt END / 1e6::float8), clock;
    ELSIF cardinality(taken) > 1 THEN
        RETURN QUERY EXECUTE format(
            CASE WHEN popped THEN
                'WITH m AS (DELETE FROM %s WHERE id = ANY(ARRAY(SELECT id FROM unnest($2)))
                            AND (expires_at::timestamptz <= $4) IS NOT TRUE
                            RETURNING id, body, headers) '
            ELSE '' END ||
            'SELECT t.id - $1, t.read_ct - $3, t.enqueued_at,
                    CASE WHEN t.read_ct > $3 THEN to_timestamp(t.read_at / 1e6::float8) END,
                    to_timestamp(CASE $3 WHEN 1 THEN t.read_at ELSE t.vt END / 1e6::float8),
                    m.body::jsonb, m.headers::jsonb
             FROM unnest($2) WITH ORDINALITY AS t ' ||
            CASE WHEN popped THEN 'JOIN m USING (id)' ELSE
                'CROSS JOIN LATERAL (
                     SELECT body, headers FROM %s m
                     WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at
                       AND (m.expires_at::timestamptz <= $4) IS NOT TRUE OFFSET 0) m' END ||
            ' ORDER BY t.ordinality', own)
        USING q.base, taken, popped::integer, clock;
    END IF;
END
$$;

-- Leases up to qty messages, or pops them if vt is NULL. Archives expired ones, and takes others in
-- their place.
CREATE OR REPLACE FUNCTION pgmq._read(
    q pgmq._opened, vt integer, qty bigint, conditional jsonb DEFAULT NULL
) RETURNS SETOF pgmq.message_record LANGUAGE plpgsql ROWS 100 AS $$
DECLARE
    clock timestamptz := clock_timestamp();
    missing bigint := qty;
    taken pgmq._delivery[];
    shown bigint;
BEGIN
    LOOP
        taken := pgmq._take(q, $2, missing, conditional, clock);
        RETURN QUERY SELECT * FROM pgmq._records(q, taken, clock, $2 IS NULL);
        GET DIAGNOSTICS shown = ROW_COUNT;
        EXIT WHEN shown = cardinality(taken);
        missing := missing - shown;
        taken := pgmq._in_time(q, taken, clock);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.read(
    queue_name text, vt integer, qty integer, conditional jsonb DEFAULT '{}'
) RETURNS SETOF pgmq.message_record LANGUAGE plpgsql ROWS 100 AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._read(
        pgmq._open($1, $2 IS NOT NULL, $3), $2, $3, nullif($4, '{}'));
END
$$;

-- Reads messages by group. Kinds are 'groups': all messages of a group, then those of the next
-- one. 'rounds': the first message of each group, then the second of each. 'heads': only the first
-- of each.
CREATE OR REPLACE FUNCTION pgmq._grouped(queue_name text, vt integer, qty integer, kind text)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql ROWS 100 AS $$
DECLARE
    q pgmq._opened := pgmq._open($1, $2 IS NOT NULL, $3);
    clock timestamptz := clock_timestamp();
    missing bigint := $3;
    wanted bigint;
    heads pgmq._delivery[];
    behind pgmq._delivery[];
    taken pgmq._delivery[] := '{}';
BEGIN
    WHILE missing > 0 LOOP
        wanted := missing;
        IF kind = 'groups' THEN
            SELECT greatest(n.heads, 1) INTO wanted FROM pgmq._heads_needed(q.id, missing) n;
        END IF;
        heads := pgmq._take(q, $2, wanted, clock => clock);
        EXIT WHEN cardinality(heads) = 0;
        heads := pgmq._in_time(q, heads, clock);
        CONTINUE WHEN cardinality(heads) = 0;
        missing := missing - cardinality(heads);
        behind := '{}';
        IF kind <> 'heads' AND missing > 0 THEN
            behind := ARRAY(
                SELECT f FROM (
                    SELECT array_agg(h.id) AS ids, array_agg(h.read_ct) AS read_cts,
                           array_agg(h.read_at) AS read_ats
                    FROM unnest(heads) h WHERE h.group_key IS NOT NULL) h
                CROSS JOIN LATERAL pgmq._follow(
                    q.id, p_ids => h.ids, p_read_cts => h.read_cts, p_read_ats => h.read_ats,
                    p_qty => missing, p_vt => make_interval(secs => $2),
                    p_max_deliveries => q.max_deliveries, p_in_rounds => kind = 'rounds') f);
            behind := pgmq._in_time(q, behind, clock);
            missing := missing - cardinality(behind);
        END IF;
        IF kind = 'groups' THEN
            -- Sort the followers behind their heads.
            heads := ARRAY(
                SELECT e.delivery
                FROM (SELECT h AS delivery, -h.priority AS rank, h.id AS head, h.id
                      FROM unnest(heads) h
                      UNION ALL
                      SELECT f, -h.priority, h.id, f.id
                      FROM unnest(behind) f JOIN unnest(heads) h ON h.group_key = f.group_key) e
                ORDER BY e.rank, e.head, e.id);
            behind := '{}';
        END IF;
        taken := taken || heads || behind;
        EXIT WHEN kind <> 'groups';
    END LOOP;
    RETURN QUERY SELECT * FROM pgmq._records(q, taken);
END
$$;

-- Repeats a read until it finds a message, for up to the given seconds. Each read has its own time
-- and snapshot.
CREATE OR REPLACE FUNCTION pgmq._poll(
    kind text, queue_name text, vt integer, qty integer, seconds integer, pause_ms integer,
    conditional jsonb DEFAULT NULL
) RETURNS SETOF pgmq.message_record LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + make_interval(secs => $5);
BEGIN
    WHILE clock_timestamp() < until LOOP
        IF kind = 'read' THEN
            RETURN QUERY SELECT * FROM pgmq.read($2, $3, $4, $7);
        ELSE
            RETURN QUERY SELECT * FROM pgmq._grouped($2, $3, $4, $1);
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        PERFORM pg_sleep($6::float8 / 1000);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.pop(queue_name text, qty integer DEFAULT 1)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql ROWS 100 AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._read(pgmq._open($1, qty => $2), NULL, $2);
END
$$;

-- ------------------------------------------------------------------ settle

-- Archives a batch lease that has exactly these messages. Returns false if there is none.
CREATE OR REPLACE FUNCTION pgmq._archive_batch(queue_id integer, ids bigint[]) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    held pgqueue_lease;
BEGIN
    DELETE FROM pgqueue_lease l WHERE l.head = $2[1] AND l.queue_id + 0 = $1 AND l.ids = $2
    RETURNING l.* INTO held;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format(
        'INSERT INTO pgqueue_archive_q%s (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                                          attempts, state)
         SELECT m.id, m.enqueued_at, $1, $1, %1$s, 1, 0, ''COMPLETED''
         FROM unnest($2, $3) AS m (id, enqueued_at)', $1)
    USING held.read_at, held.ids, held.enqueued_ats;
    RETURN true;
END
$$;

-- Archives or deletes one message that has a row in deferred. Returns false if it has none.
CREATE OR REPLACE FUNCTION pgmq._settle_one(queue_id integer, operation text, id bigint) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    held pgqueue_deferred;
BEGIN
    DELETE FROM pgqueue_deferred d WHERE d.id = $3 AND d.queue_id + 0 = $1 RETURNING d.* INTO held;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF $2 = 'delete' THEN
        EXECUTE format('DELETE FROM pgqueue_message_q%s WHERE id = $1', $1) USING $3;
    ELSE
        EXECUTE format(
            'INSERT INTO pgqueue_archive_q%s (id, enqueued_at, first_read_at, last_read_at, queue_id,
                                              read_ct, attempts, state)
             VALUES ($1, $2, $3, $4, %1$s, $5, $6, ''COMPLETED'')', $1)
        USING held.id, held.enqueued_at, held.first_read_at, held.last_read_at, held.read_ct,
            held.attempts;
    END IF;
    RETURN true;
END
$$;

-- Archives or deletes messages by id, or sets their vt, as engine/settle/settling.py does. Returns
-- the ids that it changed. Looks first in deferred and in batch leases, where leased messages are.
-- For one message, and for a whole batch lease, there are simpler statements, which are planned
-- faster.
CREATE OR REPLACE FUNCTION pgmq._settle(
    queue_id integer, operation text, ids bigint[], till timestamptz DEFAULT NULL
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    missing bigint[] := ids;
    done bigint[] := '{}';
BEGIN
    IF operation <> 'set_vt' AND cardinality(ids) = 1 AND pgmq._settle_one(queue_id, operation, ids[1])
       OR operation = 'archive' AND cardinality(ids) > 1 AND pgmq._archive_batch(queue_id, ids)
    THEN
        RETURN ids;
    END IF;
    FOR step IN 1..3 LOOP
        done := done || CASE
            WHEN operation = 'archive' AND step = 1 THEN
                ARRAY(SELECT a.id FROM pgmq._archive_held(queue_id, missing, 0) a)
            WHEN operation = 'archive' THEN ARRAY(SELECT a.id FROM pgmq._archive_by_id(
                queue_id, missing, true, p_state => 'COMPLETED') a)
            WHEN operation = 'delete' AND step = 1 THEN
                ARRAY(SELECT d.id FROM pgmq._delete_held(queue_id, missing) d)
            WHEN operation = 'delete' THEN
                ARRAY(SELECT d.id FROM pgmq._delete_by_id(queue_id, missing, true) d)
            WHEN step = 1 THEN ARRAY(SELECT v.id FROM pgmq._set_vt_held(
                queue_id, p_ids => missing, p_at => till) v)
            ELSE ARRAY(SELECT v.id FROM pgmq._set_vt_by_id(
                queue_id, p_ids => missing, p_at => till, p_in_flight => true) v)
        END;
        EXIT WHEN cardinality(done) = cardinality(ids);
        missing := ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(done) ORDER BY 1);
        IF step = 1 THEN
            PERFORM pgmq._unfold(queue_id, missing);
        END IF;
    END LOOP;
    RETURN done;
END
$$;

-- Converts a client's msg_ids to the ids of messages, sorted and without duplicates.
CREATE OR REPLACE FUNCTION pgmq._ids(base bigint, msg_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT m + $1 FROM unnest($2) m
                 WHERE m <= 9223372036854775807 - $1 ORDER BY 1);
END
$$;

{settle}

-- Returns the changed messages from deferred, and from waiting if some of them wait in their
-- groups.
CREATE OR REPLACE FUNCTION pgmq.set_vt(queue_name text, msg_ids bigint[], vt timestamptz)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    q pgmq._opened := pgmq._open($1, $3 IS NOT NULL);
    done bigint[] := pgmq._settle(q.id, 'set_vt', pgmq._ids(q.base, $2), $3::pgqueue_time);
    found_ pgmq._delivery[];
    waiting bigint[];
    groups text[];
BEGIN
    LOOP
        found_ := ARRAY(
            SELECT ROW(NULL, id, read_ct, (extract(epoch FROM last_read_at) * 1000000)::bigint,
                       enqueued_at, priority, group_key, attempts,
                       (extract(epoch FROM l.vt) * 1000000)::bigint, NULL)::pgmq._delivery
            FROM (
                SELECT id, read_ct, last_read_at, enqueued_at, priority, group_key, attempts, d.vt
                FROM pgqueue_deferred d WHERE id = ANY(done) AND queue_id + 0 = q.id
                UNION ALL
                SELECT w.*
                FROM unnest(waiting, groups) AS given (id, group_key) CROSS JOIN LATERAL (
                    SELECT id, read_ct, last_read_at, enqueued_at, priority, group_key, attempts, vt
                    FROM pgqueue_waiting w
                    WHERE w.queue_id = q.id AND w.group_key = given.group_key AND w.id = given.id
                    OFFSET 0) w) l
            ORDER BY id);
        EXIT WHEN waiting IS NOT NULL OR cardinality(found_) = cardinality(done);
        EXECUTE format('SELECT coalesce(array_agg(id), ''{}''), array_agg(group_key) '
                       'FROM pgqueue_message_q%s WHERE id = ANY($1) AND group_key IS NOT NULL', q.id)
        INTO waiting, groups USING done;
    END LOOP;
    RETURN QUERY SELECT * FROM pgmq._records(q, found_);
END
$$;

-- ------------------------------------------------------------------ metrics

CREATE OR REPLACE FUNCTION pgmq.metrics(queue_name text) RETURNS pgmq.metrics_result
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
    r pgmq.metrics_result;
    clock timestamptz := clock_timestamp();
    total bigint;
BEGIN
    -- The highest id that is still stored.
    EXECUTE 'SELECT max(id) FROM pgqueue_message_q' || q.id INTO total;
    SELECT $1, count(*), extract(epoch FROM clock - max(l.enqueued_at))::integer,
           extract(epoch FROM clock - min(l.enqueued_at))::integer, coalesce(total - q.base, 0), clock,
           count(*) FILTER (WHERE l.vt <= clock), NULL
    INTO r FROM ({live}) l WHERE l.queue_id = q.id;
    RETURN r;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.metrics_all() RETURNS SETOF pgmq.metrics_result LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT m.* FROM pgmq.list_queues() q
    CROSS JOIN LATERAL pgmq.metrics(q.queue_name) m;
END
$$;

-- ------------------------------------------------------------------ topics

CREATE OR REPLACE FUNCTION pgmq._validate_topic(label text, value text, characters text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF coalesce($2, '') = '' THEN
        RAISE EXCEPTION '% cannot be NULL or empty', $1;
    ELSIF length($2) > 255 THEN
        RAISE EXCEPTION '% length cannot exceed 255 characters, got % characters', $1, length($2);
    ELSIF $2 !~ ('^[' || $3 || ']+$') THEN
        RAISE EXCEPTION '% contains invalid characters. Got: %', $1, $2;
    ELSIF $2 ~ '^\.' THEN
        RAISE EXCEPTION '% cannot start with a dot. Got: %', $1, $2;
    ELSIF $2 ~ '\.$' THEN
        RAISE EXCEPTION '% cannot end with a dot. Got: %', $1, $2;
    ELSIF $2 ~ '\.\.' THEN
        RAISE EXCEPTION '% cannot contain consecutive dots. Got: %', $1, $2;
    ELSIF $2 ~ '\*\*' THEN
        RAISE EXCEPTION '% cannot contain consecutive stars (**). Use # for multi-segment matching. Got: %', $1, $2;
    ELSIF $2 ~ '##' THEN
        RAISE EXCEPTION '% cannot contain consecutive hashes (##). A single # already matches zero or more segments. Got: %', $1, $2;
    ELSIF $2 ~ '\*#|#\*' THEN
        RAISE EXCEPTION '% cannot contain adjacent wildcards (*# or #*). Separate wildcards with dots. Got: %', $1, $2;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.validate_routing_key(routing_key text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pgmq._validate_topic('routing_key', $1, 'a-zA-Z0-9._-');
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.validate_topic_pattern(pattern text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pgmq._validate_topic('pattern', $1, 'a-zA-Z0-9._*#-');
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.bind_topic(pattern text, queue_name text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_ text;
BEGIN
    PERFORM pgmq.validate_topic_pattern($1);
    IF coalesce($2, '') = '' THEN
        RAISE EXCEPTION 'queue_name cannot be NULL or empty';
    END IF;
    SELECT q.name INTO found_ FROM pgqueue_queue q WHERE lower(q.name) = lower($2);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Queue "%" does not exist. Create the queue first using pgmq.create()', $2;
    END IF;
    PERFORM pgmq._open($2);
    -- Replaces a binding older than the queue: it belonged to an earlier queue with this name.
    INSERT INTO pgmq.topic_bindings AS t (pattern, queue_name) VALUES ($1, found_)
    ON CONFLICT (pattern, queue_name) DO UPDATE SET bound_at = excluded.bound_at
    WHERE t.bound_at < (SELECT q.created_at FROM pgqueue_queue q WHERE lower(q.name) = lower($2));
END
$$;

CREATE OR REPLACE FUNCTION pgmq.unbind_topic(pattern text, queue_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce($1, '') = '' THEN
        RAISE EXCEPTION 'pattern cannot be NULL or empty';
    ELSIF coalesce($2, '') = '' THEN
        RAISE EXCEPTION 'queue_name cannot be NULL or empty';
    END IF;
    DELETE FROM pgmq.topic_bindings b WHERE b.pattern = $1 AND lower(b.queue_name) = lower($2);
    RETURN FOUND;
END
$$;

-- In LANGUAGE sql, unlike plpgsql, a parameter and a result column may have the same name.
CREATE OR REPLACE FUNCTION pgmq.list_topic_bindings(queue_name text DEFAULT NULL)
RETURNS TABLE (pattern text, queue_name text, bound_at timestamptz, compiled_regex text)
LANGUAGE sql STABLE AS $$
    SELECT b.pattern, b.queue_name, b.bound_at, b.compiled_regex FROM pgmq.topic_bindings b
    WHERE $1 IS NULL OR lower(b.queue_name) = lower($1)
    ORDER BY b.bound_at DESC, b.pattern, b.queue_name
$$;

-- Returns the bindings that match a routing key. Ignores bindings that are older than the queue:
-- they belonged to an earlier queue with this name.
CREATE OR REPLACE FUNCTION pgmq.test_routing(routing_key text)
RETURNS TABLE (pattern text, queue_name text, compiled_regex text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgmq.validate_routing_key($1);
    RETURN QUERY SELECT b.pattern, b.queue_name, b.compiled_regex FROM pgmq.topic_bindings b
    JOIN pgqueue_queue q ON lower(q.name) = lower(b.queue_name) AND q.created_at <= b.bound_at
    WHERE $1 ~ b.compiled_regex ORDER BY b.pattern;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.send_topic(
    routing_key text, msg jsonb, headers jsonb, delay integer
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    target text;
    reached integer := 0;
BEGIN
    IF $2 IS NULL THEN
        RAISE EXCEPTION 'msg cannot be NULL';
    ELSIF $4 < 0 THEN
        RAISE EXCEPTION 'delay cannot be negative, got: %', $4;
    END IF;
    FOR target IN SELECT DISTINCT r.queue_name FROM pgmq.test_routing($1) r ORDER BY 1 LOOP
        PERFORM pgmq.send(target, $2, $3, $4);
        reached := reached + 1;
    END LOOP;
    RETURN reached;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.send_topic(routing_key text, msg jsonb, delay integer DEFAULT 0)
RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RETURN pgmq.send_topic($1, $2, NULL, $3); END $$;

CREATE OR REPLACE FUNCTION pgmq.send_batch_topic(
    routing_key text, msgs jsonb[], headers jsonb[], delay timestamptz
) RETURNS TABLE (queue_name text, msg_id bigint) LANGUAGE plpgsql AS $$
DECLARE
    target text;
BEGIN
    PERFORM pgmq._validate_batch_params($2, $3);
    FOR target IN SELECT DISTINCT r.queue_name FROM pgmq.test_routing($1) r ORDER BY 1 LOOP
        RETURN QUERY SELECT target, s FROM pgmq.send_batch(target, $2, $3, $4) s;
    END LOOP;
END
$$;

-- ------------------------------------------------------------------ notify

-- Notifies at most once per interval. As in pgqueue_wake, a sequence holds the time of the last
-- notification; it has the same grants as the queue's own wake-up sequence. This function must not
-- make a send fail. So it finds the sequence by pg_class, which needs no right on this schema, and
-- if the role has no rights on the sequence, it notifies for each row.
CREATE OR REPLACE FUNCTION pgmq.notify_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    mark oid := (SELECT oid FROM pg_class WHERE relname = 'pgqueue_wake_q' || TG_ARGV[0]
                 AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'pgmq'));
    now_ms bigint := date_part('epoch', clock_timestamp()) * 1000;
BEGIN
    IF has_sequence_privilege(mark, 'SELECT') AND has_sequence_privilege(mark, 'UPDATE') THEN
        IF pg_sequence_last_value(mark) BETWEEN now_ms - TG_ARGV[2]::bigint + 1 AND now_ms + 1000 THEN
            RETURN NULL;
        END IF;
        PERFORM setval(mark, now_ms);
    END IF;
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('pgmq.q_' || TG_ARGV[1] || '.INSERT', NULL);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION pgmq.notify_insert() FROM PUBLIC;

CREATE OR REPLACE FUNCTION pgmq.disable_notify_insert(queue_name text) RETURNS void
LANGUAGE plpgsql SET client_min_messages = warning AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS pgmq_notify ON pgqueue_message_q%s', q.id);
    EXECUTE format('DROP SEQUENCE IF EXISTS pgmq.pgqueue_wake_q%s', q.id);
END
$$;

CREATE OR REPLACE FUNCTION pgmq.enable_notify_insert(
    queue_name text, throttle_interval_ms integer DEFAULT 250
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q record;
    statement text;
BEGIN
    IF $2 IS NULL OR $2 < 0 THEN
        RAISE EXCEPTION 'throttle_interval_ms must be non-negative, got: %', $2;
    END IF;
    PERFORM FROM pgqueue_queue p WHERE lower(p.name) = lower($1);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Queue "%" does not exist. Create it first using pgmq.create()', $1;
    END IF;
    q := pgmq._open($1);
    PERFORM pgmq.disable_notify_insert($1);
    EXECUTE format('CREATE SEQUENCE pgmq.pgqueue_wake_q%s AS bigint', q.id);
    FOR statement IN
        SELECT format('GRANT %s ON SEQUENCE pgmq.pgqueue_wake_q%s TO %s', a.privilege_type, q.id,
                      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = to_regclass('pgqueue_wake_q' || q.id) AND a.grantee <> c.relowner
    LOOP
        EXECUTE statement;
    END LOOP;
    EXECUTE format(
        'CREATE TRIGGER pgmq_notify AFTER INSERT ON pgqueue_message_q%s FOR EACH ROW '
        'EXECUTE FUNCTION pgmq.notify_insert(%L, %L, %L)', q.id, q.id, q.name, $2);
END
$$;

CREATE OR REPLACE FUNCTION pgmq.update_notify_insert(queue_name text, throttle_interval_ms integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF $2 IS NULL OR $2 < 0 THEN
        RAISE EXCEPTION 'throttle_interval_ms must be non-negative, got: %', $2;
    END IF;
    PERFORM FROM pgqueue_queue p WHERE lower(p.name) = lower($1);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Queue "%" does not exist. Create the queue first using pgmq.create()', $1;
    END IF;
    PERFORM FROM pgmq.list_notify_insert_throttles() t WHERE lower(t.queue_name) = lower($1);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'Queue "%" does not have notify_insert enabled. Enable it first using pgmq.enable_notify_insert()', $1;
    END IF;
    PERFORM pgmq.enable_notify_insert($1, $2);
END
$$;

CREATE OR REPLACE FUNCTION pgmq.list_notify_insert_throttles()
RETURNS TABLE (queue_name text, throttle_interval_ms integer, last_notified_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT q.name::text, split_part(encode(t.tgargs, 'escape'), '\000', 3)::integer,
           to_timestamp(coalesce(pg_sequence_last_value(
               to_regclass('pgmq.pgqueue_wake_q' || q.id)), 0) / 1000.0)
    FROM pgmq.list_queues() l JOIN pgqueue_queue q ON q.name = l.queue_name
    JOIN pg_trigger t ON t.tgrelid = to_regclass('pgqueue_message_q' || q.id)
    WHERE t.tgname = 'pgmq_notify' ORDER BY 1;
END
$$;

CREATE OR REPLACE VIEW pgmq.notify_insert_throttle AS SELECT * FROM pgmq.list_notify_insert_throttles();

{overloads}

-- PUBLIC is safe here: only roles with USAGE on the schema can select from these, and the functions
-- behind the views run with the caller's rights.
GRANT SELECT ON pgmq.meta, pgmq.notify_insert_throttle, pgmq.own_queue, pgmq.topic_bindings TO PUBLIC;
