-- Claim a message's unique key, and insert the message unless the claim was skipped. Returns the id
-- of the message that now has the key, and what happened if another one held it.
WITH claimed AS MATERIALIZED (
    SELECT id, conflict, latest
    FROM pgqueue_claim_keys(
        {queue_id}, ARRAY[%(unique)s::text], ARRAY[%(priority)s::smallint], ARRAY[%(group)s::text],
        %(kind)s, %(window)s, %(on_conflict)s, %(max_wait)s)
),
sent AS (
    INSERT INTO {message} (id, queue_id, scheduled_at, {expires_at}{common_columns}, group_key,
                           unique_key, headers, body)
    SELECT id, {queue_id},
           least(coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval), latest),
           {expires}{common_values}, %(group)s::text, %(unique)s::text,
           %(headers)s::jsonb, %(body)s::jsonb
    FROM claimed WHERE conflict IS DISTINCT FROM 'skipped'
)
SELECT id, conflict FROM claimed
