-- Complete all messages of batch leases. archive.sql looks up the messages of a lease that does not match.
WITH gone AS (
    {leases/whole}
    RETURNING ids, enqueued_ats, read_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, result)
SELECT m.id, m.enqueued_at, read_at, read_at, {queue_id}, 1, %(ran)s, 'COMPLETED',
       %(results)s::jsonb -> m.id::text
FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
RETURNING id
