-- Forget all messages of batch leases. forget.sql looks up those of a lease that does not match.
WITH gone AS (
    {leases/whole}
    RETURNING ids
)
SELECT unnest(ids) AS id FROM gone
