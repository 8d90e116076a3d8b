-- Delete batch leases whose messages are all done. A lease that was changed since does not match. P3, P4.
WITH gone AS (
    DELETE FROM pgqueue_lease
    WHERE head = ANY(ARRAY(SELECT unnest(%(heads)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND ((head, read_at, ids::text) IN (
          SELECT g.head, timestamptz 'epoch' + g.read_at::float8 * interval '1 microsecond', g.ids
          FROM unnest(%(heads)s::bigint[], %(read_ats)s::bigint[], %(members)s::text[])
              AS g (head, read_at, ids))) IS TRUE
    RETURNING ids
)
SELECT unnest(ids) AS id FROM gone
