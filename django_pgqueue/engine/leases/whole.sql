-- Part that other statements include: deletes batch leases whose messages are all done. A lease does not
-- match if it was changed or unfolded (unfold.sql), or if its messages were read again. P3, P4.
DELETE FROM pgqueue_lease
    WHERE head = ANY(ARRAY(SELECT unnest(%(heads)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND ((head, read_at, ids::text) IN (
          SELECT g.head, timestamptz 'epoch' + g.read_at::float8 * interval '1 microsecond', g.ids
          FROM unnest(%(heads)s::bigint[], %(read_ats)s::bigint[], %(members)s::text[])
              AS g (head, read_at, ids))) IS TRUE
