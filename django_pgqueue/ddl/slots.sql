-- Limits and rates of groups. Those of a whole queue are in whole_queue.sql.
--
-- A group has slots: rows of pgqueue_group, each with one message, its head. The other messages of
-- the group wait in pgqueue_waiting. With a limit, the end of a head frees its slot; with only a
-- rate, the start of the head does. With a rate, the next head of a slot may not start before the
-- slot's free_at. A FIFO group has one slot and no rate. Only its slot may have followers: messages
-- that one read has leased together with the head.
--
-- Four functions choose heads; all move them by the text in become_heads.sql.
--
-- - pgqueue_first_heads and pgqueue_next_heads (groups.sql): in queues whose groups never had a limit
--   above 1, a rate or settings of their own. With one slot there are no others to look at, and no
--   rule: the functions below brought groups to 0.72 of the speed.
-- - pgqueue_fill_usual: in other queues (pgqueue_queue.has_slots), where only a limit counts, for
--   many groups in one statement.
-- - pgqueue_fill_slots: in these queues, in any case, for one group.

-- Returns the time between two starts in one of the slots that share a rate such as '30/m', rounded
-- up to microseconds.
CREATE FUNCTION {schema}.pgqueue_spacing(rate text, slots integer) RETURNS interval
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ceil(slots * 1000000::float8 * CASE right(rate, 1) WHEN 's' THEN 1 WHEN 'm' THEN 60
                                  WHEN 'h' THEN 3600 ELSE 86400 END
                / split_part(rate, '/', 1)::float8) * interval '1 microsecond'
$$;

-- Raises an error unless each statement of this transaction has a new snapshot. An older one would
-- not show what other sessions have leased.
CREATE FUNCTION {schema}.pgqueue_need_read_committed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a queue with limits or rates can only be read in READ COMMITTED, not in %',
                upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Set default_transaction_isolation of this role or connection to '
                         '''read committed''.';
    END IF;
END
$$;

-- Returns the rule of a group, from its own settings or else from its queue's.
--
-- slots     how many slots it has
-- spacing   the time from one start in a slot to the next; NULL without a rate
-- by_start  whether the start of a head frees its slot, instead of its end
-- is_fifo   whether messages start in order, so that a delayed head delays those behind it
CREATE FUNCTION {schema}.pgqueue_group_rule(
    queue integer, key text, OUT slots integer, OUT spacing interval, OUT by_start boolean,
    OUT is_fifo boolean, OUT paused boolean
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rate text;
    burst integer;
BEGIN
    SELECT coalesce(s."limit", q.group_limit),
           CASE WHEN q.group_rate IS NOT NULL THEN coalesce(s.rate, q.group_rate) END,
           CASE WHEN s.rate IS NULL THEN q.group_burst ELSE s.burst END,
           coalesce(s.paused, false)
    INTO slots, rate, burst, paused
    FROM {schema}.pgqueue_queue q
    LEFT JOIN {schema}.pgqueue_group_setting s ON s.queue_id = q.id AND s.group_key = key
    WHERE q.id = queue;
    by_start := slots IS NULL AND rate IS NOT NULL;
    is_fifo := rate IS NULL AND coalesce(slots, 1) = 1;
    slots := coalesce(slots, CASE WHEN rate IS NOT NULL THEN burst END, 1);
    spacing := {schema}.pgqueue_spacing(rate, slots);
END
$$;

-- Returns the slots of a group, each with the state of its head, if the head is in deferred, and
-- whether the head is in ready. The function is STABLE and has no settings of its own, so PostgreSQL
-- replaces a call in FROM by the function's text.
CREATE FUNCTION {schema}.pgqueue_slots_of(queue integer, key text) RETURNS TABLE (
    place tid, slot smallint, head bigint, followers bigint[], free_at timestamptz,
    is_ready boolean, state text, vt timestamptz, last_read_at timestamptz
) LANGUAGE sql STABLE AS $$
    SELECT g.ctid, g.slot, g.head, g.followers, g.free_at, r.found, d.state, d.vt, d.last_read_at
    FROM {schema}.pgqueue_group g
    LEFT JOIN LATERAL (
        SELECT d.state, d.vt, d.last_read_at FROM {schema}.pgqueue_deferred d
        WHERE d.id = g.head AND d.queue_id + 0 = queue LIMIT 1) d ON true
    LEFT JOIN LATERAL (
        SELECT true AS found FROM {schema}.pgqueue_ready r
        WHERE r.queue_id = queue AND -r.priority = -g.priority AND r.turn = g.turn
          AND r.id = g.head LIMIT 1) r ON true
    WHERE g.queue_id = queue AND g.group_key = key
$$;

-- The steps of pgqueue_fill_slots have no settings of their own: its settings apply to them.

-- Step 1. Tries to lock a group, by its slot with the lowest number. Returns false if another
-- transaction has locked it, or if this transaction keeps its first snapshot, which does not show
-- all slots that are taken.
--
-- opening: whether the caller holds the lock that groups without slots need (groups/promote.sql)
CREATE FUNCTION {schema}.pgqueue_lock_slots(queue integer, key text, opening boolean)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    lock smallint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    END IF;
    SELECT slot INTO lock FROM {schema}.pgqueue_group WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.pgqueue_group WHERE queue_id = queue AND group_key = key
        ORDER BY slot LIMIT 1))
    FOR UPDATE SKIP LOCKED;
    IF lock IS NULL AND NOT opening THEN
        RETURN false;
    END IF;
    -- Another transaction may have made a lower slot meanwhile.
    PERFORM FROM {schema}.pgqueue_group
    WHERE queue_id = queue AND group_key = key AND slot < coalesce(lock, 32767)
    ORDER BY slot LIMIT 1;
    RETURN NOT FOUND;
END
$$;

-- Step 2. Looks at the slots of a group: which are free by its rule? held are the slots that this
-- session has locked since it looked before.
--
-- numbers    all slots
-- free       free slots, the latest next_at first
-- next_ats   when the next heads of these may start, by the rate
-- unsure     slots that may be free, but are not in held
-- taken      how many slots are not free
-- unread     whether a head has not started
-- late       whether a head that has not started waits for a time that the rule has changed
-- orphaned   whether a head has ended before its followers
CREATE FUNCTION {schema}.pgqueue_look_at_slots(
    queue integer, key text, rule record, held smallint[],
    OUT numbers smallint[], OUT free smallint[], OUT next_ats timestamptz[], OUT unsure smallint[],
    OUT taken integer, OUT unread boolean, OUT late boolean, OUT orphaned boolean
) LANGUAGE plpgsql AS $$
BEGIN
    -- A slot is free if its head has ended; if the head has started and the rule is by_start; or if
    -- the head is delayed, unless the group is FIFO or the head waits for free_at.
    WITH slot AS (
        SELECT s.*, f.id AS follower,
               CASE WHEN rule.spacing IS NOT NULL THEN least(
                   CASE WHEN s.state = 'PROCESSING' AND rule.by_start
                        THEN greatest(s.free_at, s.last_read_at + rule.spacing)
                        ELSE s.free_at END,
                   clock_timestamp() + rule.spacing) END AS next_at
        FROM {schema}.pgqueue_slots_of(queue, key) s
        LEFT JOIN LATERAL (
            SELECT f.id FROM {schema}.pgqueue_deferred f
            WHERE f.id = ANY(s.followers) AND f.id <> s.head AND f.queue_id + 0 = queue
            ORDER BY f.id LIMIT 1) f ON true
    ),
    known AS (
        SELECT *, follower IS NULL AND is_ready IS NULL AND (
                   state IS NULL
                   OR state = 'PROCESSING' AND rule.by_start
                   OR state <> 'PROCESSING' AND NOT rule.is_fifo
                      AND vt > statement_timestamp() AND vt IS DISTINCT FROM free_at) AS may_be_free
        FROM slot
    ),
    sure AS (
        -- A read that leases a head in deferred locks its slot. So this session must lock it first,
        -- to know that the slot is free.
        SELECT *, may_be_free AND (state IS NULL OR (slot = ANY(held)) IS TRUE) AS is_free
        FROM known
    )
    SELECT coalesce(array_agg(slot), '{}'),
           array_agg(slot ORDER BY next_at DESC NULLS LAST, slot) FILTER (WHERE is_free),
           array_agg(next_at ORDER BY next_at DESC NULLS LAST, slot) FILTER (WHERE is_free),
           array_agg(slot) FILTER (WHERE may_be_free AND NOT is_free),
           count(*) FILTER (WHERE NOT is_free),
           coalesce(bool_or(NOT is_free AND (is_ready OR state <> 'PROCESSING')), false),
           coalesce(bool_or(state <> 'PROCESSING' AND vt = free_at
                            AND next_at IS DISTINCT FROM free_at), false),
           coalesce(bool_or(state IS NULL AND is_ready IS NULL AND follower IS NOT NULL), false)
    INTO numbers, free, next_ats, unsure, taken, unread, late, orphaned
    FROM sure;
END
$$;

-- Step 3. Puts the oldest waiting messages into slots: first into the free ones that are kept, each
-- not before its next_at, then into new ones. In a group that is not FIFO, passes over delayed
-- messages, and moves them from waiting to deferred, where they wait without a slot.
--
-- numbers   all slots
-- kept      the free slots that may get a head, and next_ats when these may start
-- room      how many more heads the group may have
-- ahead     how many messages to look at beyond that number, since some may be delayed
-- filled    the slots that got a head
-- put_off   how many messages went to deferred without a slot
CREATE FUNCTION {schema}.pgqueue_give_slots(
    queue integer, key text, rule record, numbers smallint[], kept smallint[],
    next_ats timestamptz[], room integer, ahead integer,
    OUT filled smallint[], OUT put_off integer
) LANGUAGE plpgsql AS $$
BEGIN
    WITH slot AS MATERIALIZED (
        SELECT s.slot, s.next_at,
               row_number() OVER (ORDER BY s.next_at NULLS FIRST, s.slot) AS number
        FROM (
            SELECT * FROM unnest(kept, next_ats) AS k (slot, next_at)
            UNION ALL
            (SELECT n, NULL FROM generate_series(0, rule.slots + cardinality(numbers)) AS n
             WHERE n <> ALL(numbers)
             LIMIT room - coalesce(cardinality(kept), 0))) s
        WHERE NOT rule.paused
    ),
    next AS MATERIALIZED (
        SELECT w.spot, w.is_put_off,
               row_number() OVER (PARTITION BY w.is_put_off ORDER BY w.id) AS number
        FROM (
            SELECT ctid AS spot, id,
                   NOT rule.is_fifo AND coalesce(vt > statement_timestamp(), false) AS is_put_off
            FROM {schema}.pgqueue_waiting
            WHERE queue_id = queue AND group_key = key
            ORDER BY id
            LIMIT CASE WHEN EXISTS (SELECT FROM slot) THEN room + ahead ELSE 0 END
            FOR UPDATE SKIP LOCKED) w
        -- A FIFO group waits for its first message, even if that is locked.
        WHERE NOT rule.is_fifo OR w.id = (
            SELECT f.id FROM {schema}.pgqueue_waiting f
            WHERE f.queue_id = queue AND f.group_key = key ORDER BY f.id LIMIT 1)
    ),
    moved AS (
        DELETE FROM {schema}.pgqueue_waiting w USING (
            SELECT n.spot, n.is_put_off, s.slot, s.next_at
            FROM next n LEFT JOIN slot s ON s.number = n.number AND NOT n.is_put_off
        ) n
        WHERE w.ctid = n.spot AND (n.is_put_off OR n.slot IS NOT NULL)
        RETURNING w.*, n.slot, n.next_at,
                  greatest(w.vt, n.next_at, statement_timestamp()) AS due_at,
                  {next_turn} AS turn
    ),
    {become_heads},
    headed AS (
        INSERT INTO {schema}.pgqueue_group AS g
            (queue_id, group_key, slot, head, turn, priority, free_at)
        SELECT queue_id, group_key, slot, id, turn, priority, next_at FROM moved
        WHERE slot IS NOT NULL
        ON CONFLICT (queue_id, group_key, slot) DO UPDATE
        SET head = excluded.head, turn = excluded.turn, priority = excluded.priority,
            followers = NULL, free_at = excluded.free_at
    )
    SELECT coalesce(array_agg(slot) FILTER (WHERE slot IS NOT NULL), '{}'),
           count(*) FILTER (WHERE slot IS NULL)
    INTO filled, put_off
    FROM moved;
END
$$;

-- Step 4. Ends the free slots that got no head: empties those whose next_at is to come, since the
-- rate demands the wait, and removes the others.
CREATE FUNCTION {schema}.pgqueue_end_slots(
    queue integer, key text, free smallint[], filled smallint[], kept smallint[],
    next_ats timestamptz[]
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH emptied AS (
        UPDATE {schema}.pgqueue_group g SET head = NULL, followers = NULL, free_at = k.next_at
        FROM unnest(kept, next_ats) AS k (slot, next_at)
        WHERE g.queue_id = queue AND g.group_key = key AND g.slot = k.slot
          AND k.next_at > statement_timestamp() AND g.slot <> ALL(filled)
    )
    DELETE FROM {schema}.pgqueue_group g
    WHERE g.queue_id = queue AND g.group_key = key AND g.slot = ANY(free) AND g.slot <> ALL(filled)
      AND NOT EXISTS (SELECT FROM unnest(kept, next_ats) AS k (slot, next_at)
                      WHERE k.slot = g.slot AND k.next_at > statement_timestamp());
END
$$;

-- Empties the slots of those heads of a group that have not started. Puts the heads back in
-- waiting.
CREATE FUNCTION {schema}.pgqueue_empty_slots(queue integer, key text, spacing interval)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH slot AS MATERIALIZED (
        SELECT g.ctid AS place, g.head, g.turn, g.priority, g.free_at FROM {schema}.pgqueue_group g
        WHERE g.queue_id = queue AND g.group_key = key
    ),
    unread AS (
        DELETE FROM {schema}.pgqueue_ready WHERE ctid = ANY(ARRAY(
            SELECT r.ctid FROM slot s CROSS JOIN LATERAL (
                SELECT r.ctid FROM {schema}.pgqueue_ready r
                WHERE r.queue_id = queue AND -r.priority = -s.priority AND r.turn = s.turn
                  AND r.id = s.head
                FOR UPDATE SKIP LOCKED) r))
        RETURNING id, enqueued_at, priority
    ),
    put_off AS (
        DELETE FROM {schema}.pgqueue_deferred WHERE ctid = ANY(ARRAY(
            SELECT d.ctid FROM slot s CROSS JOIN LATERAL (
                SELECT d.ctid FROM {schema}.pgqueue_deferred d
                WHERE d.id = s.head AND d.queue_id + 0 = queue AND d.state <> 'PROCESSING'
                FOR UPDATE SKIP LOCKED) d))
        RETURNING *
    ),
    back AS (
        INSERT INTO {schema}.pgqueue_waiting
            (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, attempts,
             priority, group_key, error)
        SELECT id, NULL, enqueued_at, NULL, NULL, queue, 0, 0, priority, key, NULL FROM unread
        UNION ALL
        SELECT id, nullif(vt, (SELECT s.free_at FROM slot s WHERE s.head = id)), enqueued_at,
               first_read_at, last_read_at, queue, read_ct, attempts, priority, key, error
        FROM put_off
        RETURNING id
    )
    UPDATE {schema}.pgqueue_group g
    SET head = NULL, free_at = least(s.free_at, clock_timestamp() + spacing)
    FROM slot s JOIN back b ON b.id = s.head
    WHERE g.ctid = s.place;
END
$$;

-- If the head of a FIFO group has ended before its followers, the first of these becomes the head of
-- the slot: the group is not FIFO any more.
CREATE FUNCTION {schema}.pgqueue_follow_on(queue integer, key text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.pgqueue_group g SET head = (
        SELECT f.id FROM {schema}.pgqueue_deferred f
        WHERE f.id = ANY(g.followers) AND f.queue_id + 0 = queue ORDER BY f.id LIMIT 1)
    WHERE g.queue_id = queue AND g.group_key = key AND g.followers IS NOT NULL;
END
$$;

-- Lets no head of a group start in its slot again: messages in flight keep their slots, and
-- set_back.sql puts them back once they are due.
CREATE FUNCTION {schema}.pgqueue_close_slots(queue integer, key text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.pgqueue_group SET free_at = 'infinity'
    WHERE queue_id = queue AND group_key = key AND head IS NOT NULL
      AND free_at IS DISTINCT FROM 'infinity';
END
$$;

-- Brings the slots of a group up to date: fills the free ones with the oldest waiting messages. If
-- a lower limit or a pause leaves too many heads, puts the unstarted heads back in waiting. Returns
-- false if it must be called again, since another transaction has locked the group or a message.
--
-- It tries the locks of the group and of messages, and never waits for them. But it waits to change a
-- slot that a read has locked (pgqueue_may_start) or maintenance deletes (sweep_slots.sql), until that
-- transaction ends.
CREATE FUNCTION {schema}.pgqueue_fill_slots(queue integer, key text, opening boolean)
RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    rule record;
    seen record;
    given record;
    held smallint[];  -- slots that this session has locked, since their heads are in deferred
    late boolean;     -- whether unstarted heads have to go back to waiting
    room integer;
    ahead integer := 0;
BEGIN
    IF NOT {schema}.pgqueue_lock_slots(queue, key, opening) THEN
        RETURN false;
    END IF;
    rule := {schema}.pgqueue_group_rule(queue, key);
    LOOP
        seen := {schema}.pgqueue_look_at_slots(queue, key, rule, held);
        IF held IS NULL AND seen.unsure IS NOT NULL THEN
            held := ARRAY(
                SELECT slot FROM {schema}.pgqueue_group
                WHERE queue_id = queue AND group_key = key AND slot = ANY(seen.unsure)
                FOR UPDATE SKIP LOCKED);
            CONTINUE;
        END IF;
        IF seen.orphaned THEN
            PERFORM {schema}.pgqueue_follow_on(queue, key);
        END IF;

        room := greatest(rule.slots - seen.taken, 0);
        late := seen.late
                OR seen.unread AND seen.taken > CASE WHEN rule.paused THEN 0 ELSE rule.slots END;
        IF late AND ahead = 0 THEN
            PERFORM {schema}.pgqueue_empty_slots(queue, key, rule.spacing);
            ahead := 1;
            CONTINUE;
        END IF;
        IF seen.taken = rule.slots AND seen.free IS NULL AND seen.unsure IS NULL AND NOT late
           AND NOT rule.paused THEN
            RETURN true;  -- no slot to fill, to empty or to remove
        END IF;

        -- If too many slots are free, keeps those with the latest next_at, as the rate demands.
        given := {schema}.pgqueue_give_slots(
            queue, key, rule, seen.numbers, seen.free[:room], seen.next_ats[:room], room, ahead);
        IF NOT seen.free <@ given.filled THEN
            PERFORM {schema}.pgqueue_end_slots(
                queue, key, seen.free, given.filled, seen.free[:room], seen.next_ats[:room]);
        END IF;
        IF given.filled <> '{}' THEN
            PERFORM {schema}.pgqueue_wake(queue);
        END IF;
        EXIT WHEN given.put_off = 0;
        ahead := 2 * (ahead + given.put_off);
    END LOOP;

    IF rule.paused OR seen.taken > rule.slots THEN
        PERFORM {schema}.pgqueue_close_slots(queue, key);
    END IF;
    IF late OR seen.unsure IS NOT NULL OR cardinality(given.filled) = room OR rule.paused THEN
        RETURN NOT late AND seen.unsure IS NULL;
    END IF;
    PERFORM FROM {schema}.pgqueue_waiting WHERE queue_id = queue AND group_key = key
    ORDER BY id LIMIT 1;
    RETURN NOT FOUND;
END
$$;

-- Returns those of some groups whose free slots one statement can fill: they have no rate, no
-- pause, not too many heads, no followers and no delayed message. locks are the slots by which the
-- caller has locked the groups. Replaced by its text, as pgqueue_slots_of.
--
-- room     how many more heads the group may have
-- taken    its slots with a head
-- free     its other slots, and in places their rows
CREATE FUNCTION {schema}.pgqueue_usual_groups(
    queue_ids integer[], groups text[], locks smallint[], opening boolean
) RETURNS TABLE (
    queue_id integer, group_key text, room integer, is_fifo boolean, taken smallint[],
    free smallint[], places tid[]
) LANGUAGE sql STABLE AS $$
    SELECT k.queue_id, k.group_key, r.slots - cardinality(g.taken), r.slots = 1,
           g.taken, g.free, g.places
    FROM unnest(queue_ids, groups, locks) AS k (queue_id, group_key, lock)
    CROSS JOIN LATERAL (
        SELECT q.group_limit FROM {schema}.pgqueue_queue q
        WHERE q.id = k.queue_id AND q.group_rate IS NULL OFFSET 0) q
    LEFT JOIN LATERAL (
        SELECT s."limit", s.paused FROM {schema}.pgqueue_group_setting s
        WHERE s.queue_id = k.queue_id AND s.group_key = k.group_key OFFSET 0) s ON true
    CROSS JOIN LATERAL (SELECT coalesce(s."limit", q.group_limit, 1) AS slots) r
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots, min(g.slot) AS first, bool_or(g.is_unusual) AS is_unusual,
               coalesce(array_agg(g.slot) FILTER (WHERE g.is_taken), '{}') AS taken,
               array_agg(g.slot) FILTER (WHERE NOT g.is_taken) AS free,
               array_agg(g.place) FILTER (WHERE NOT g.is_taken) AS places
        FROM (
            SELECT place, slot, state IS NOT NULL OR is_ready IS NOT NULL AS is_taken,
                   followers IS NOT NULL
                   OR state <> 'PROCESSING' AND vt > statement_timestamp() AS is_unusual
            FROM {schema}.pgqueue_slots_of(k.queue_id, k.group_key)) g) g
    WHERE s.paused IS NOT TRUE AND g.is_unusual IS NOT TRUE AND g.slots <= r.slots
      AND g.first IS NOT DISTINCT FROM k.lock AND (k.lock IS NOT NULL OR opening)
$$;

-- The usual case of pgqueue_fill_groups: one statement fills the slots of all usual groups. Returns
-- the other groups, and those that have more waiting messages than it could lock.
CREATE FUNCTION {schema}.pgqueue_fill_usual(
    INOUT queue_ids integer[], INOUT groups text[], locks smallint[], opening boolean
) LANGUAGE plpgsql AS $$
BEGIN
    WITH next AS MATERIALIZED (
        SELECT u.*, w.*, ARRAY(
                   SELECT n FROM generate_series(0, cardinality(u.taken) + cardinality(w.spots)) AS n
                   WHERE n <> ALL(u.taken) LIMIT cardinality(w.spots)) AS slots
        FROM (SELECT * FROM {schema}.pgqueue_usual_groups(queue_ids, groups, locks, opening)
              OFFSET 0) u
        CROSS JOIN LATERAL (
            SELECT array_agg(w.id) AS ids, coalesce(array_agg(w.spot), '{}') AS spots,
                   bool_or(w.vt > statement_timestamp()) IS TRUE AS is_put_off
            FROM (SELECT w.ctid AS spot, w.id, w.vt FROM {schema}.pgqueue_waiting w
                  WHERE w.queue_id = u.queue_id AND w.group_key = u.group_key
                  ORDER BY w.id LIMIT u.room FOR UPDATE SKIP LOCKED) w
            -- A FIFO group waits for its first message, even if that is locked.
            WHERE NOT u.is_fifo OR w.id = (
                SELECT f.id FROM {schema}.pgqueue_waiting f
                WHERE f.queue_id = u.queue_id AND f.group_key = u.group_key
                ORDER BY f.id LIMIT 1)) w
    ),
    moved AS (
        DELETE FROM {schema}.pgqueue_waiting w USING (
            SELECT m.spot, m.slot
            FROM next n CROSS JOIN LATERAL unnest(n.ids, n.spots, n.slots)
                WITH ORDINALITY AS m (id, spot, slot, number)
            WHERE NOT n.is_put_off
            ORDER BY m.number, m.id OFFSET 0) m
        WHERE w.ctid = m.spot
        RETURNING w.*, m.slot, statement_timestamp() AS due_at,
                  {next_turn} AS turn
    ),
    {become_heads},
    headed AS (
        INSERT INTO {schema}.pgqueue_group (queue_id, group_key, slot, head, turn, priority)
        SELECT queue_id, group_key, slot, id, turn, priority FROM moved
        ON CONFLICT (queue_id, group_key, slot) DO UPDATE
        SET head = excluded.head, turn = excluded.turn, priority = excluded.priority, free_at = NULL
    ),
    done AS MATERIALIZED (
        SELECT n.* FROM next n
        WHERE NOT n.is_put_off AND (cardinality(n.spots) = n.room OR (
                  SELECT true FROM {schema}.pgqueue_waiting w
                  WHERE w.queue_id = n.queue_id AND w.group_key = n.group_key
                  ORDER BY w.id OFFSET cardinality(n.spots) LIMIT 1) IS NULL)
          -- If the numbers differ, a message was changed before this statement locked it.
          AND (SELECT count(*) FROM moved) = (
              SELECT sum(cardinality(n.spots)) FROM next n WHERE NOT n.is_put_off)
    ),
    removed AS (
        DELETE FROM {schema}.pgqueue_group WHERE ctid = ANY(ARRAY(
            SELECT f.place FROM done d CROSS JOIN LATERAL unnest(d.free, d.places) AS f (slot, place)
            WHERE f.slot <> ALL(d.slots)))
    )
    SELECT array_agg(k.queue_id), array_agg(k.group_key),
           (SELECT count({schema}.pgqueue_wake(m.queue_id))
            FROM (SELECT DISTINCT queue_id FROM moved) m)
    INTO queue_ids, groups
    FROM unnest(queue_ids, groups) AS k (queue_id, group_key)
    WHERE (k.queue_id, k.group_key) NOT IN (SELECT queue_id, group_key FROM done);
END
$$;

-- Fills the free slots of groups: of the usual ones by one statement, of the others by
-- pgqueue_fill_slots. Returns the groups that must be filled again.
CREATE FUNCTION {schema}.pgqueue_fill_groups(
    INOUT queue_ids integer[], INOUT groups text[], opening boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    locks smallint[];
BEGIN
    IF opening THEN
        PERFORM {schema}.pgqueue_need_read_committed();
    END IF;

    SELECT array_agg(k.queue_id), array_agg(k.group_key), array_agg(l.slot)
    INTO queue_ids, groups, locks
    FROM (SELECT DISTINCT * FROM unnest(queue_ids, groups) AS k (queue_id, group_key)) k
    LEFT JOIN LATERAL (
        SELECT slot FROM {schema}.pgqueue_group WHERE ctid = ANY(ARRAY(
            SELECT g.ctid FROM {schema}.pgqueue_group g
            WHERE g.queue_id = k.queue_id AND g.group_key = k.group_key ORDER BY g.slot LIMIT 1))
        FOR UPDATE SKIP LOCKED) l ON true;

    SELECT f.queue_ids, f.groups INTO queue_ids, groups
    FROM {schema}.pgqueue_fill_usual(queue_ids, groups, locks, opening) f;

    IF queue_ids IS NOT NULL THEN
        SELECT array_agg(k.queue_id), array_agg(k.group_key) INTO queue_ids, groups
        FROM unnest(queue_ids, groups) AS k (queue_id, group_key)
        WHERE NOT {schema}.pgqueue_fill_slots(k.queue_id, k.group_key, opening);
    END IF;
END
$$;

-- Fills the free slots of groups for a read in a transaction that stays open, until it has filled
-- slots of as many groups as it may. Only these groups stay locked. Returns their number, and the
-- groups that need not be filled again.
CREATE FUNCTION {schema}.pgqueue_fill_some(
    queue integer, groups text[], most bigint, OUT heads integer, OUT full_groups text[]
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    key text;
    before bigint[];
    unfilled text[];
BEGIN
    heads := 0;
    full_groups := '{}';
    FOREACH key IN ARRAY groups LOOP
        EXIT WHEN heads >= most;
        BEGIN
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended(key, queue));
            before := ARRAY(SELECT head FROM {schema}.pgqueue_group
                            WHERE queue_id = queue AND group_key = key ORDER BY slot);
            SELECT f.groups INTO unfilled
            FROM {schema}.pgqueue_fill_groups(ARRAY[queue], ARRAY[key], true) f;
            IF unfilled IS NULL THEN
                full_groups := full_groups || key;
            END IF;
            IF before = ARRAY(SELECT head FROM {schema}.pgqueue_group
                              WHERE queue_id = queue AND group_key = key ORDER BY slot) THEN
                RAISE SQLSTATE 'PQ001';  -- rolls the locks back
            END IF;
            heads := heads + 1;
        EXCEPTION WHEN SQLSTATE 'PQ001' THEN NULL;
        END;
    END LOOP;
END
$$;

-- Fills the slots of heads that left ready or deferred. Called by the trigger (groups.sql). Inserts
-- rechecks for groups that another transaction has locked, and for all groups if this transaction
-- keeps its first snapshot.
CREATE FUNCTION {schema}.pgqueue_slots_freed(
    from_ready boolean, ids bigint[], queue_ids integer[], groups text[]
) RETURNS void
LANGUAGE plpgsql {pinned} AS $$
BEGIN
    -- Excludes heads that a read is moving from ready to deferred.
    SELECT array_agg(m.queue_id), array_agg(m.group_key) INTO queue_ids, groups
    FROM unnest(ids, queue_ids, groups) AS m (id, queue_id, group_key) CROSS JOIN LATERAL (
        SELECT FROM {schema}.pgqueue_group g
        WHERE g.queue_id = m.queue_id AND g.group_key = m.group_key AND g.head = m.id LIMIT 1) g
    WHERE NOT from_ready OR (
        SELECT true FROM {schema}.pgqueue_deferred d
        WHERE d.id = m.id AND d.queue_id + 0 = m.queue_id AND d.state = 'PROCESSING'
        LIMIT 1) IS NULL;

    IF queue_ids IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
        SELECT f.queue_ids, f.groups INTO queue_ids, groups
        FROM {schema}.pgqueue_fill_groups(queue_ids, groups, false) f;
    END IF;
    INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
    SELECT {schema}.pgqueue_recheck_id(), f.queue_id, f.group_key
    FROM unnest(queue_ids, groups) AS f (queue_id, group_key);
END
$$;

-- Returns whether a message may start now: it has no group, or it is the head of a slot whose
-- free_at has passed or is NULL. Locks the slot; returns false if another transaction holds its
-- lock. Reads call it for due messages of groups and, if groups have a rate, for ready messages.
CREATE FUNCTION {schema}.pgqueue_may_start(queue integer, key text, head_id bigint)
RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
BEGIN
    PERFORM FROM {schema}.pgqueue_group
    WHERE queue_id = queue AND group_key = key AND head = head_id
      AND (free_at IS NULL OR free_at <= statement_timestamp())
    FOR UPDATE SKIP LOCKED;
    RETURN FOUND OR key IS NULL;
END
$$;

-- Records that messages have started, in a queue whose groups have a rate: the next head of each
-- slot may start one spacing from now, by the clock, since the read may have waited for another one.
-- Fills the slots that a start frees. pgqueue_may_start has locked the slots.
CREATE FUNCTION {schema}.pgqueue_started(queue integer, ids bigint[], groups text[])
RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
DECLARE
    started record;
    rule record;
BEGIN
    FOR started IN
        SELECT * FROM unnest(ids, groups) AS m (id, key) WHERE key IS NOT NULL ORDER BY id
    LOOP
        rule := {schema}.pgqueue_group_rule(queue, started.key);
        UPDATE {schema}.pgqueue_group g SET free_at = clock_timestamp() + rule.spacing
        WHERE g.queue_id = queue AND g.group_key = started.key AND g.head = started.id
          AND rule.spacing IS NOT NULL;
        IF rule.by_start AND NOT {schema}.pgqueue_fill_slots(queue, started.key, false) THEN
            INSERT INTO {schema}.pgqueue_recheck (id, queue_id, group_key)
            VALUES ({schema}.pgqueue_recheck_id(), queue, started.key);
        END IF;
    END LOOP;
    RETURN true;
END
$$;
