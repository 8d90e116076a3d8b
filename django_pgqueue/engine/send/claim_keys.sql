-- Claim the unique keys of a batch. Returns for each message its id, what happened if another
-- message held its key, and the end of its delay.
SELECT id, conflict, least(
           coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval), latest)::text
FROM pgqueue_claim_keys(
    {queue_id}, %(unique_keys)s::text[], %(priorities)s::smallint[], %(groups)s::text[], %(kind)s,
    %(window)s, %(on_conflict)s, %(max_wait)s)
ORDER BY place
