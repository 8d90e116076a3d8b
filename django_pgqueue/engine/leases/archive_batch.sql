-- Complete all messages of batch leases. A lease does not match if it was changed or unfolded
-- (unfold.sql), or if its messages were read again: archive.sql then looks up each message. P3, P4.
WITH gone AS (
    DELETE FROM pgqueue_lease
    WHERE head = ANY(ARRAY(SELECT unnest(%(heads)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND ((head, read_at, ids::text) IN (
          SELECT g.head, timestamptz 'epoch' + g.read_at::float8 * interval '1 microsecond', g.ids
          FROM unnest(%(heads)s::bigint[], %(read_ats)s::bigint[], %(members)s::text[])
              AS g (head, read_at, ids))) IS TRUE
    RETURNING ids, enqueued_ats, read_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, result)
SELECT m.id, m.enqueued_at, read_at, read_at, {queue_id}, 1, %(ran)s, 'COMPLETED',
       %(results)s::jsonb -> m.id::text
FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
RETURNING id
