-- The limit and the rate of a whole queue.
--
-- Reads of such a queue run one after another: each locks a row of pgqueue_group until its commit.
-- So it sees everything that was leased before it, and counts. The row has slot -1 and the key '',
-- which no message can have. Its free_at is when the rate permits the next start.

-- Returns how many messages of a queue are leased. Batch leases are from before the limit; ends those
-- that have expired. The settings of pgqueue_admit apply to this function.
CREATE FUNCTION {schema}.pgqueue_leased(queue integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    leased bigint;
BEGIN
    -- Batch leases are counted first: a batch that is unfolded meanwhile counts twice, not never.
    leased := (SELECT coalesce(sum(cardinality(l.ids)), 0) FROM {schema}.pgqueue_lease l
               WHERE l.queue_id = queue);
    IF leased > 0 THEN
        WITH gone AS (
            DELETE FROM {schema}.pgqueue_lease WHERE ctid = ANY(ARRAY(
                SELECT l.ctid FROM {schema}.pgqueue_lease l
                WHERE l.queue_id = queue AND l.vt <= statement_timestamp()
                  -- A read of a subscription unfolds its leases before, with the messages.
                  AND NOT EXISTS (SELECT FROM {schema}.pgqueue_queue q
                                  WHERE q.id = queue AND to_jsonb(q) -> 'source_id' <> 'null')
                FOR UPDATE SKIP LOCKED))
            RETURNING *
        ),
        ended AS (
            INSERT INTO {schema}.pgqueue_deferred
                (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, priority, state)
            SELECT m.id, vt, m.enqueued_at, read_at, read_at + interval '1 microsecond', queue, 1,
                   priority, 'RETRYABLE'
            FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
            RETURNING 1
        )
        SELECT leased - count(*) INTO leased FROM ended;
    END IF;
    RETURN leased + (SELECT count(*) FROM {schema}.pgqueue_deferred d
                     WHERE d.queue_id = queue AND d.state LIKE 'PROCESSING');
END
$$;

-- Returns how many messages a read may lease. Waits for the read before it.
--
-- number      how many messages may start now, at most qty
-- next_at     when the first of them could have started by the rate; NULL without a rate
-- spacing     the time from one start to the next; NULL without a rate
-- is_reused   whether the number counts on messages whose lease has expired. This read delivers
--             them again or ends their leases: pgqueue_admitted
CREATE FUNCTION {schema}.pgqueue_admit(
    queue integer, qty bigint,
    OUT number bigint, OUT next_at timestamptz, OUT spacing interval, OUT is_reused boolean
) LANGUAGE plpgsql {pinned} AS $$
DECLARE
    most integer;
    burst integer;
    now timestamptz;    -- after the wait
    saved interval;     -- how long a burst may save up
    leased bigint;
    expired bigint;
BEGIN
    PERFORM {schema}.pgqueue_need_read_committed();
    LOOP
        SELECT g.free_at INTO next_at FROM {schema}.pgqueue_group g
        WHERE g.queue_id = queue AND g.group_key = '' AND g.slot = -1 FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.pgqueue_group (queue_id, group_key, slot, priority, free_at)
        VALUES (queue, '', -1, 0, '-infinity') ON CONFLICT DO NOTHING;
    END LOOP;

    SELECT q."limit", q.burst, {schema}.pgqueue_spacing(q.rate, 1) INTO most, burst, spacing
    FROM {schema}.pgqueue_queue q WHERE q.id = queue;
    now := clock_timestamp();
    number := coalesce(qty, 9223372036854775807);
    is_reused := false;

    IF spacing IS NULL THEN
        next_at := NULL;
    ELSIF next_at > now + spacing THEN
        -- The rate was raised, or the clock was ahead.
        UPDATE {schema}.pgqueue_group g SET free_at = now + spacing
        WHERE g.queue_id = queue AND g.group_key = '' AND g.slot = -1;
        number := 0;
    ELSIF next_at > statement_timestamp() THEN
        number := 0;
    ELSE
        -- A message starts when its read began, and is delivered after the wait. The rate holds for
        -- both times.
        saved := (coalesce(burst, 1) - 1) * spacing;
        number := least(number, 1 + floor(
            extract(epoch FROM statement_timestamp()
                               - greatest(next_at, statement_timestamp() - saved))
            / extract(epoch FROM spacing)));
        next_at := greatest(next_at, now - saved);
    END IF;

    IF most IS NULL OR number = 0 THEN
        RETURN;
    END IF;
    leased := {schema}.pgqueue_leased(queue);
    IF number > most - leased THEN
        -- A row that another session has locked may be extended, so it counts as leased.
        expired := cardinality(ARRAY(
            SELECT d.ctid FROM {schema}.pgqueue_deferred d
            WHERE d.queue_id = queue AND d.state LIKE 'PROCESSING' AND d.vt <= statement_timestamp()
            FOR UPDATE SKIP LOCKED));
        is_reused := expired > 0;
        number := greatest(least(number, most - leased + expired), 0);
    END IF;
END
$$;

-- Records the start of the messages ids. The other arguments are the results of pgqueue_admit. Ends
-- the leases that have expired and were not delivered again: their receipts become invalid.
CREATE FUNCTION {schema}.pgqueue_admitted(
    queue integer, ids bigint[], next_at timestamptz, spacing interval, is_reused boolean
) RETURNS boolean
LANGUAGE plpgsql {pinned} AS $$
BEGIN
    UPDATE {schema}.pgqueue_group g SET free_at = next_at + cardinality(ids) * spacing
    WHERE g.queue_id = queue AND g.group_key = '' AND g.slot = -1 AND spacing IS NOT NULL
      AND cardinality(ids) > 0;
    UPDATE {schema}.pgqueue_deferred
    SET state = 'RETRYABLE', process_id = NULL,
        last_read_at = last_read_at + interval '1 microsecond'
    WHERE is_reused AND ctid = ANY(ARRAY(
        SELECT d.ctid FROM {schema}.pgqueue_deferred d
        WHERE d.queue_id = queue AND d.state LIKE 'PROCESSING' AND d.vt <= statement_timestamp()
          AND d.last_read_at < statement_timestamp()
        FOR UPDATE SKIP LOCKED));
    RETURN true;
END
$$;
