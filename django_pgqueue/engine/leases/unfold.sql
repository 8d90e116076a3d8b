-- Replace the batch leases of these messages by a row of deferred for each message in them. Returns
-- the number of rows. P3, P5.
WITH gone AS (
    DELETE FROM pgqueue_lease
    WHERE head = ANY(ARRAY(
        SELECT l.head FROM unnest(%(ids)s::bigint[]) AS given (id)
        CROSS JOIN LATERAL (
            SELECT head FROM pgqueue_lease
            WHERE int8range(head, tail, '[]') @> given.id AND queue_id + 0 = {queue_id}
              AND given.id = ANY(ids) OFFSET 0) l))
      AND queue_id + 0 = {queue_id}
    RETURNING *
),
{leases/rows}
SELECT count(*) FROM each WHERE {leases/unflushed}
