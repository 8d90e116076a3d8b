-- Done, all that is left of a lease: it goes with one row. One that was changed or unfolded since
-- is passed by, and archive.sql finds what stood in it. The length of the list is hidden from the
-- planner, or it would plan anew for each: that takes longer than all the rest.
WITH gone AS (
    DELETE FROM {lease}
    WHERE head = ANY(ARRAY(SELECT unnest(%(heads)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND ids::text = ANY(%(members)s::text[])
    RETURNING ids, enqueued_ats, read_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state)
SELECT m.id, m.enqueued_at, read_at, read_at, {queue_id}, 1, %(ran)s, 'COMPLETED'
FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
RETURNING id
