-- Unique keys. A row of pgqueue_claim has a key and the last message that was sent with it. It does
-- not store whether the message still holds the key: the next send of the key looks at the
-- message's state. So statements that end a message need not release its key, and no crash leaves a
-- key held.

-- The settings of pgqueue_claim_keys and pgqueue_sweep_keys (pinned.sql) also apply to the functions
-- that they call: a SET in each called function would take longer than claiming a key.

-- Returns whether the message of a claim holds its key. A claim of kind 'window' holds it until the
-- window ends, 'started' until the first delivery, 'done' until the message leaves the queue. Once
-- the message has expired, no read delivers it: 'started' has ended, and so has 'done' unless the
-- message is in flight. STABLE: one snapshot sees all tables, between which messages move.
CREATE FUNCTION {schema}.pgqueue_holds_key(claim {schema}.pgqueue_claim) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    expired boolean;
BEGIN
    IF claim.kind = 'window' THEN
        RETURN claim.until > statement_timestamp();
    END IF;
    IF NOT (EXISTS (
        SELECT FROM {schema}.pgqueue_ready r
        WHERE r.queue_id = claim.queue_id AND -r.priority = -claim.priority
          AND r.turn = coalesce(
              (SELECT g.turn FROM {schema}.pgqueue_group g
               WHERE g.queue_id = claim.queue_id AND g.group_key = claim.group_key
                 AND g.head = claim.id LIMIT 1), claim.id << 20)
          AND r.id = claim.id
    ) OR EXISTS (
        SELECT FROM {schema}.pgqueue_deferred d
        WHERE d.id = claim.id AND d.queue_id + 0 = claim.queue_id
          AND (claim.kind = 'done' OR d.first_read_at IS NULL)
    ) OR EXISTS (
        SELECT FROM {schema}.pgqueue_waiting w
        WHERE w.queue_id = claim.queue_id AND w.group_key = claim.group_key AND w.id = claim.id
          AND (claim.kind = 'done' OR w.first_read_at IS NULL)
    ) OR claim.kind = 'done' AND EXISTS (
        SELECT FROM {schema}.pgqueue_lease l
        WHERE int8range(l.head, l.tail, '[]') @> claim.id AND l.queue_id + 0 = claim.queue_id
          AND claim.id = ANY(l.ids)
    )) THEN
        RETURN false;
    END IF;
    -- Uses the queue's own partition: a role may have rights on no other.
    EXECUTE format('SELECT expires_at::timestamptz <= statement_timestamp() '
                   'FROM {schema}.pgqueue_message_q%s WHERE id = $1', claim.queue_id)
        INTO expired USING claim.id;
    RETURN expired IS NOT TRUE OR EXISTS (
        SELECT FROM {schema}.pgqueue_deferred d
        WHERE d.id = claim.id AND d.queue_id + 0 = claim.queue_id
          AND d.state = 'PROCESSING' AND d.vt > statement_timestamp()
    ) OR EXISTS (
        SELECT FROM {schema}.pgqueue_lease l
        WHERE int8range(l.head, l.tail, '[]') @> claim.id AND l.queue_id + 0 = claim.queue_id
          AND claim.id = ANY(l.ids) AND l.vt > statement_timestamp()
    );
END
$$;

-- Returns the claim of the message that holds a key, or NULL. With ORDER BY the look-up uses the
-- primary key: for an equality in a small table the planner would use the sweep's index.
CREATE FUNCTION {schema}.pgqueue_holder(queue integer, key text) RETURNS {schema}.pgqueue_claim
LANGUAGE plpgsql STABLE AS $$
DECLARE
    claim {schema}.pgqueue_claim;
BEGIN
    SELECT c.* INTO claim FROM (
        SELECT * FROM {schema}.pgqueue_claim WHERE queue_id = queue AND unique_key >= key
        ORDER BY unique_key LIMIT 1) c
    WHERE c.unique_key = key;
    IF FOUND AND {schema}.pgqueue_holds_key(claim) THEN
        RETURN claim;
    END IF;
    RETURN NULL;
END
$$;

-- Archives the message of a claim as REPLACED by the message successor. Returns false, and archives
-- nothing, if the message is in flight or locked by another transaction, such as a read that leases
-- it.
CREATE FUNCTION {schema}.pgqueue_replace(claim {schema}.pgqueue_claim, successor bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gone {schema}.pgqueue_archive;
BEGIN
    DELETE FROM {schema}.pgqueue_ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.pgqueue_ready
        WHERE queue_id = claim.queue_id AND -priority = -claim.priority
          AND turn = coalesce(
              (SELECT g.turn FROM {schema}.pgqueue_group g
               WHERE g.queue_id = claim.queue_id AND g.group_key = claim.group_key
                 AND g.head = claim.id LIMIT 1), claim.id << 20)
          AND id = claim.id
        FOR UPDATE SKIP LOCKED))
    RETURNING enqueued_at, NULL, NULL, 0, 0
    INTO gone.enqueued_at, gone.first_read_at, gone.last_read_at, gone.read_ct, gone.attempts;
    IF NOT FOUND THEN
        DELETE FROM {schema}.pgqueue_deferred WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {schema}.pgqueue_deferred
            WHERE id = claim.id AND queue_id + 0 = claim.queue_id AND state <> 'PROCESSING'
            FOR UPDATE SKIP LOCKED))
        RETURNING enqueued_at, first_read_at, last_read_at, read_ct, attempts
        INTO gone.enqueued_at, gone.first_read_at, gone.last_read_at, gone.read_ct, gone.attempts;
    END IF;
    IF NOT FOUND THEN
        DELETE FROM {schema}.pgqueue_waiting WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {schema}.pgqueue_waiting
            WHERE queue_id = claim.queue_id AND group_key = claim.group_key AND id = claim.id
            FOR UPDATE SKIP LOCKED))
        RETURNING enqueued_at, first_read_at, last_read_at, read_ct, attempts
        INTO gone.enqueued_at, gone.first_read_at, gone.last_read_at, gone.read_ct, gone.attempts;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;

    -- Uses the queue's own partition: a role may have rights on no other.
    EXECUTE format(
        'INSERT INTO {schema}.pgqueue_archive_q%s (id, enqueued_at, first_read_at, last_read_at, '
        'queue_id, read_ct, attempts, state, error) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)',
        claim.queue_id)
    USING claim.id, gone.enqueued_at, gone.first_read_at, gone.last_read_at, claim.queue_id,
          gone.read_ct, gone.attempts, 'REPLACED', 'replaced by message ' || successor;
    RETURN true;
END
$$;

-- Claims one key for the message new.id. Returns:
-- id        new.id, or the id of the message that holds the key if new.id must not be sent
-- conflict  'skipped' if new.id must not be sent, 'replaced' or 'delayed' if it replaces a message
-- latest    the time at which new.id must be readable at the latest, if max_wait is given
--
-- If another open transaction is claiming the key, waits for it to end, and then looks at the key
-- again with a new snapshot.
CREATE FUNCTION {schema}.pgqueue_claim_key(
    new {schema}.pgqueue_claim, on_conflict text, max_wait interval, is_batch boolean,
    OUT id bigint, OUT conflict text, OUT latest timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    old {schema}.pgqueue_claim;
BEGIN
    id := new.id;
    latest := new.first_at + max_wait;

    -- First only look the key up, so that a duplicate writes nothing.
    IF on_conflict = 'skip' THEN
        old := {schema}.pgqueue_holder(new.queue_id, new.unique_key);
        -- Concurrent senders of one key wait for each other at this lock. With a row lock instead,
        -- the commit of a sender that then finds the key held would wait for the disk. Batches do
        -- not take this lock: the server has space for only some thousands of advisory locks.
        IF old.id IS NULL AND NOT is_batch THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(new.unique_key, new.queue_id));
            old := {schema}.pgqueue_holder(new.queue_id, new.unique_key);
        END IF;
        IF old.id IS NOT NULL THEN
            id := old.id;
            conflict := 'skipped';
            RETURN;
        END IF;
    END IF;

    -- Inserts the key's row. If the row exists, only locks it, since WHERE is false.
    INSERT INTO {schema}.pgqueue_claim AS c VALUES (new.*)
    ON CONFLICT (queue_id, unique_key) DO UPDATE SET id = c.id WHERE false;
    IF FOUND THEN
        RETURN;
    END IF;

    old := {schema}.pgqueue_holder(new.queue_id, new.unique_key);
    IF old.id IS NOT NULL THEN
        -- After max_wait a replacement keeps its position among due messages (send.sql). A message
        -- in a group is not replaced then: the replacement goes to the end of the group, so repeated
        -- sends could postpone the message for ever.
        IF on_conflict <> 'skip'
           AND (coalesce(old.group_key, new.group_key) IS NULL
                OR (old.first_at + max_wait > statement_timestamp()) IS NOT FALSE)
           AND {schema}.pgqueue_replace(old, new.id) THEN
            conflict := CASE on_conflict WHEN 'replace' THEN 'replaced' ELSE 'delayed' END;
            new.first_at := old.first_at;
            latest := new.first_at + max_wait;
        ELSIF on_conflict = 'skip' OR old.kind <> 'started' THEN
            id := old.id;
            conflict := 'skipped';
            RETURN;
        END IF;
    END IF;
    UPDATE {schema}.pgqueue_claim c
    SET id = new.id, until = new.until, first_at = new.first_at, priority = new.priority,
        kind = new.kind, group_key = new.group_key
    WHERE c.queue_id = new.queue_id AND c.unique_key = new.unique_key;
END
$$;

-- Claims the new keys of a batch, and locks the rows of keys that may be claimed again, in sorted
-- order. new has what the claims have in common. Returns by key, in sorted order, the id of the
-- message that now holds the key; NULL if pgqueue_claim_key has to decide. Of messages with the same
-- key, 'skip' claims for the first, 'replace' and 'delay' for the last.
CREATE FUNCTION {schema}.pgqueue_claim_new_keys(
    new {schema}.pgqueue_claim, keys text[], ids bigint[], priorities smallint[], groups text[],
    on_conflict text, OUT holders bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT *, CASE on_conflict WHEN 'skip'
                  THEN ({schema}.pgqueue_holder(new.queue_id, unique_key)).id END AS holder
        FROM (
            SELECT DISTINCT ON (unique_key) unique_key, id, priority, group_key
            FROM unnest(keys, ids, priorities, groups)
                WITH ORDINALITY AS k (unique_key, id, priority, group_key, place)
            WHERE unique_key IS NOT NULL
            ORDER BY unique_key, CASE on_conflict WHEN 'skip' THEN place ELSE -place END) k
    ),
    inserted AS (
        INSERT INTO {schema}.pgqueue_claim AS c
            (id, until, first_at, queue_id, priority, kind, unique_key, group_key)
        SELECT id, new.until, new.first_at, new.queue_id, priority, new.kind, unique_key, group_key
        FROM asked WHERE holder IS NULL  -- a duplicate writes nothing
        ORDER BY unique_key
        ON CONFLICT (queue_id, unique_key) DO UPDATE SET id = c.id WHERE false
        RETURNING c.id
    )
    SELECT array_agg(CASE WHEN id IN (SELECT id FROM inserted) THEN id ELSE holder END
                     ORDER BY unique_key)
    INTO holders FROM asked;
END
$$;

-- Claims the keys of a batch of messages. Returns for each message its place in the batch, and what
-- pgqueue_claim_key returns. Single sends, batch sends and Spark's sink call this function, and
-- then insert the messages that were not skipped, with the returned ids.
--
-- For a batch, one statement inserts all new keys, and locks the rows of keys that may be claimed
-- again. It does so in sorted order, so that two batches cannot deadlock. Of messages with the same
-- key, 'skip' sends the first; 'replace' and 'delay' send the last. Each call also deletes up to two
-- keys of the queue whose windows have ended.
--
-- keys, priorities, groups: one for each message
-- kind: 'window', 'started' or 'done'
-- during: the window; for the other kinds, the time after which maintenance first checks the key
-- on_conflict: 'skip', 'replace' or 'delay'
CREATE FUNCTION {schema}.pgqueue_claim_keys(
    queue integer, keys text[], priorities smallint[], groups text[], kind text, during interval,
    on_conflict text, max_wait interval
) RETURNS TABLE (place bigint, id bigint, conflict text, latest timestamptz)
LANGUAGE plpgsql {pinned} AS $$
#variable_conflict use_column
DECLARE
    ids bigint[] := ARRAY(SELECT nextval('{schema}.pgqueue_message_id_seq') FROM unnest(keys));
    conflicts text[] := array_fill(NULL::text, ARRAY[cardinality(keys)]);
    latests timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(keys)]);
    new {schema}.pgqueue_claim;
    holders bigint[];  -- by key, in sorted order; NULL if pgqueue_claim_key has to decide
    claimed record;
    places bigint[];
    sent bigint;
    other bigint;
    number integer := 0;
BEGIN
    PERFORM {schema}.pgqueue_clear_lost(q.id) FROM {schema}.pgqueue_queue q
    WHERE q.id = queue AND q.unlogged;

    new.queue_id := queue;
    new.kind := kind;
    new.first_at := statement_timestamp();
    new.until := new.first_at + during;
    IF cardinality(keys) > 1 THEN
        holders := {schema}.pgqueue_claim_new_keys(new, keys, ids, priorities, groups, on_conflict);
    END IF;
    FOR new.unique_key, places IN
        SELECT unique_key, array_agg(place ORDER BY place)
        FROM unnest(keys) WITH ORDINALITY AS k (unique_key, place)
        WHERE unique_key IS NOT NULL
        GROUP BY unique_key ORDER BY unique_key
    LOOP
        sent := places[CASE on_conflict WHEN 'skip' THEN 1 ELSE cardinality(places) END];
        new.id := ids[sent];
        new.priority := priorities[sent];
        new.group_key := groups[sent];
        number := number + 1;
        IF holders[number] IS NULL THEN
            claimed := {schema}.pgqueue_claim_key(
                new, on_conflict, max_wait, cardinality(keys) > 1);
        ELSE
            SELECT holders[number] AS id,
                   CASE WHEN holders[number] <> new.id THEN 'skipped' END AS conflict,
                   new.first_at + max_wait AS latest
            INTO claimed;
        END IF;
        FOREACH other IN ARRAY places LOOP
            ids[other] := claimed.id;
            conflicts[other] := 'skipped';
        END LOOP;
        conflicts[sent] := claimed.conflict;
        latests[sent] := claimed.latest;
    END LOOP;

    RETURN QUERY
        SELECT place, id, conflict, latest
        FROM unnest(ids, conflicts, latests) WITH ORDINALITY AS r (id, conflict, latest, place);

    DELETE FROM {schema}.pgqueue_claim WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {schema}.pgqueue_claim
        WHERE queue_id = queue AND kind = 'window' AND until <= statement_timestamp()
        ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED));
END
$$;

-- Checks a queue's unique keys whose column until has passed; the argument most limits how many.
-- Deletes the keys that are no longer held, and checks the others again when they are twice as old.
-- Skips keys that a send has locked. Returns how many it checked, and how many it deleted.
CREATE FUNCTION {schema}.pgqueue_sweep_keys(
    queue integer, most integer, OUT seen bigint, OUT deleted bigint
) LANGUAGE plpgsql {pinned} AS $$
BEGIN
    WITH due AS MATERIALIZED (
        SELECT ctid, {schema}.pgqueue_holds_key(c) AS held FROM {schema}.pgqueue_claim c
        WHERE queue_id = queue AND kind = ANY('{window,started,done}')
          AND until <= statement_timestamp()
        LIMIT most FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM {schema}.pgqueue_claim
        WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE NOT held))
        RETURNING 1
    ),
    kept AS (
        UPDATE {schema}.pgqueue_claim
        SET until = statement_timestamp() + (statement_timestamp() - first_at)
        WHERE ctid = ANY(ARRAY(SELECT ctid FROM due WHERE held))
    )
    SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM gone) INTO seen, deleted;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_sweep_keys(integer, integer) FROM PUBLIC;
