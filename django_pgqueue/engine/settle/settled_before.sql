-- Deliveries that were settled before, by an operation whose answer was lost on its way: their
-- messages are in the archive, or due again, and were not read since. A cancelled message was
-- settled by no delivery.
SELECT r.id
FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
    AS r (id, read_ct, read_at)
CROSS JOIN LATERAL (
    SELECT timestamptz 'epoch' + r.read_at::float8 * interval '1 microsecond' AS moment) at
CROSS JOIN LATERAL (
    (SELECT FROM {archive} a
     WHERE {to_archive} AND a.id = r.id AND a.last_read_at = at.moment AND a.read_ct = r.read_ct
       AND a.state <> 'CANCELLED' OFFSET 0)
    UNION ALL
    (SELECT FROM pgqueue_deferred d
     WHERE NOT {to_archive} AND d.id = r.id AND d.queue_id + 0 = {queue_id}
       AND d.last_read_at = at.moment AND d.state <> 'PROCESSING' OFFSET 0)
) done
