-- Steps, notes and waits (docs/flows.md). A role sees and writes those of queues on which it has rights
-- (policies.sql).

-- A note is written again and again: leave space for its next version beside it.
ALTER TABLE {schema}.pgqueue_note SET (fillfactor = 50, autovacuum_vacuum_threshold = 1000);

ALTER TABLE {schema}.pgqueue_note ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_step ENABLE ROW LEVEL SECURITY;

CREATE POLICY pgqueue_note_of_queue ON {schema}.pgqueue_note
    USING ({schema}.pgqueue_may(queue_id, 'SELECT'));

-- A signal ends waits of all queues. So each role that may send one sees all waits, and writes their outcomes.
CREATE POLICY pgqueue_step_of_queue ON {schema}.pgqueue_step
    USING ({schema}.pgqueue_may(queue_id, 'SELECT'))
    WITH CHECK ({schema}.pgqueue_may(queue_id, 'SELECT') OR starts_with(name, 'wait_for '));

-- Sends a signal, unless it was sent before and is kept. Each wait for it becomes a step with its value, and the
-- waiting message is due. Returns how many messages waited.
--
-- A handler that waits locks the signal's row, too (flows/lock_signal.sql), until the wait is stored. So either the
-- wait sees the signal, or the second statement here, in a snapshot of its own, sees the wait.
CREATE FUNCTION {schema}.pgqueue_signal(signal_key text, signal_value jsonb, keep_for interval)
RETURNS bigint LANGUAGE plpgsql {pinned} AS $$
DECLARE
    waited bigint;
BEGIN
    INSERT INTO {schema}.pgqueue_signal AS s (key, value, sent_at, keep_until)
    VALUES (signal_key, signal_value, statement_timestamp(), statement_timestamp() + keep_for)
    ON CONFLICT (key) DO UPDATE SET
        value = excluded.value, at = excluded.at, sent_at = excluded.sent_at,
        keep_until = excluded.keep_until
    WHERE s.sent_at IS NULL OR s.keep_until <= excluded.at;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;

    WITH over AS (
        DELETE FROM {schema}.pgqueue_wait WHERE key = signal_key RETURNING queue_id, message_id, name
    ),
    -- A message may have ended since: cancelled, replaced, expired.
    live AS MATERIALIZED (
        SELECT o.* FROM over o CROSS JOIN LATERAL (
            SELECT FROM {schema}.pgqueue_deferred d
            WHERE d.id = o.message_id AND d.queue_id + 0 = o.queue_id LIMIT 1) d
    ),
    steps AS (
        INSERT INTO {schema}.pgqueue_step (message_id, queue_id, name, value)
        SELECT message_id, queue_id, name, jsonb_build_object('signal', signal_value) FROM live
        ON CONFLICT DO NOTHING
    ),
    due AS (
        UPDATE {schema}.pgqueue_deferred d SET vt = statement_timestamp()
        FROM live o
        WHERE d.id = o.message_id AND d.queue_id + 0 = o.queue_id AND d.state <> 'PROCESSING'
          AND d.vt > statement_timestamp()
        RETURNING d.queue_id
    )
    -- A role without rights on a queue wakes none of its consumers: they find the message at their next poll.
    SELECT (SELECT count(*) FROM live), count({schema}.pgqueue_wake(q.queue_id))
    INTO waited FROM (SELECT DISTINCT queue_id FROM due) q
    WHERE has_sequence_privilege(to_regclass('{schema}.pgqueue_wake_q' || q.queue_id), 'UPDATE') IS NOT FALSE;
    RETURN waited;
END
$$;

REVOKE EXECUTE ON FUNCTION {schema}.pgqueue_signal(text, jsonb, interval) FROM PUBLIC;
