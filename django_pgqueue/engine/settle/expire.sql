-- Archive messages that had expired when a read leased them. They were not delivered, so read_ct
-- does not count that lease. Fenced.
WITH gone AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/fence}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct - 1 AS read_ct, attempts, error
)
{settle/expired}
