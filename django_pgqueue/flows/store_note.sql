-- Store a note in place of the last one, if this delivery still holds its message. Fenced.
WITH held AS MATERIALIZED (
    SELECT id FROM pgqueue_deferred
    WHERE {settle/fence} AND state = 'PROCESSING' AND {leases/unflushed}
    FOR UPDATE
)
INSERT INTO pgqueue_note (message_id, queue_id, value)
SELECT id, {queue_id}, %(value)s::jsonb FROM held
ON CONFLICT (queue_id, message_id) DO UPDATE SET value = excluded.value, at = statement_timestamp()
RETURNING true
