-- Store the value of a step if this delivery still holds its message, and return what is stored. The lock keeps
-- other readers out until the commit, so the next delivery sees the step, or this one stores nothing. Fenced.
WITH held AS MATERIALIZED (
    SELECT id FROM pgqueue_deferred WHERE {settle/fence} AND state = 'PROCESSING' FOR UPDATE
)
INSERT INTO pgqueue_step (message_id, queue_id, name, value)
SELECT id, {queue_id}, %(name)s::text, %(value)s::jsonb FROM held
-- Only this delivery can have stored it before, if the answer of its commit was lost.
ON CONFLICT (queue_id, message_id, name) DO UPDATE SET at = pgqueue_step.at
RETURNING true, value::text, at = statement_timestamp() AS is_first
