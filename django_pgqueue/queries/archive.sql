-- Done: the leases go, their outcome is written. Fenced: a receipt of an earlier delivery
-- matches nothing. The body stays where it is. The + 0 leaves the planner only the index on id:
-- the one led by queue_id would go through all that is deferred. The length of the list is hidden
-- from it: for lists of one it would plan anew each time, in half of the time of the whole.
WITH gone AS (
    DELETE FROM {deferred}
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND {fence}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts + %(ran)s, 'COMPLETED'
FROM gone
RETURNING id
