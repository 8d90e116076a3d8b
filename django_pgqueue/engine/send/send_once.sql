-- One message with a dedup key: sent, or the id of the message that has the key. A second
-- transaction that sends the same key waits for the first to commit or roll back. A key whose
-- window is over is taken over, and two others are swept on the way.
WITH new AS MATERIALIZED (
    SELECT nextval('pgqueue_message_id_seq') AS id
),
claimed AS (
    INSERT INTO {dedup} AS d (queue_id, dedup_key, id, until)
    SELECT {queue_id}, %(dedup_key)s::text, id, statement_timestamp() + %(window)s FROM new
    ON CONFLICT (queue_id, dedup_key) DO UPDATE
    SET id = CASE WHEN d.until <= statement_timestamp() THEN excluded.id ELSE d.id END,
        until = CASE WHEN d.until <= statement_timestamp() THEN excluded.until ELSE d.until END
    RETURNING id
),
sent AS (
    INSERT INTO {message} (id, queue_id, scheduled_at, priority, group_key, dedup_key, headers, body)
    SELECT id, {queue_id},
           coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
           %(priority)s, %(group)s::text, %(dedup_key)s::text, %(headers)s::jsonb, %(body)s::jsonb
    FROM claimed JOIN new USING (id)
),
swept AS (
    DELETE FROM {dedup} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {dedup}
        WHERE queue_id = {queue_id} AND until <= statement_timestamp()
          AND dedup_key <> %(dedup_key)s
        ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED))
)
SELECT id FROM claimed
