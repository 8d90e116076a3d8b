-- Wait, if this delivery still holds its message: until the deadline of the wait, which an earlier delivery may have
-- begun, no reader gets the message, and this delivery is not counted. After the deadline, end the wait. Returns
-- whether the wait is over. Fenced.
WITH held AS MATERIALIZED (
    SELECT id FROM pgqueue_deferred WHERE {settle/fence} AND state = 'PROCESSING' FOR UPDATE
),
over AS (
    DELETE FROM pgqueue_wait w USING held h
    WHERE w.queue_id = {queue_id} AND w.message_id = h.id AND w.name = %(name)s::text
      AND w.until <= statement_timestamp()
    RETURNING h.id
),
begun AS (
    INSERT INTO pgqueue_wait (message_id, queue_id, name, key, until)
    SELECT id, {queue_id}, %(name)s::text, %(key)s::text, statement_timestamp() + %(timeout)s::interval
    FROM held WHERE NOT EXISTS (SELECT FROM over)
    ON CONFLICT (queue_id, message_id, name) DO UPDATE SET key = excluded.key
    RETURNING message_id AS id, until
),
parked AS (
    UPDATE pgqueue_deferred d
    -- Not RETRYABLE: a consumer that drains the queue would wait for it.
    SET vt = b.until, read_ct = greatest(d.read_ct - 1, 0), process_id = NULL, state = 'SCHEDULED'
    FROM begun b
    WHERE d.id = b.id AND d.queue_id + 0 = {queue_id}
    RETURNING d.id
)
SELECT true, true AS is_over FROM over UNION ALL SELECT true, false FROM parked
