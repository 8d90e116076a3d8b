-- Whether a subscription still needs a message of a partition: one that it has not read, or that one of
-- its leases holds. Only transactions from a position's xmin on may be unread.
SELECT EXISTS (
    SELECT FROM pgqueue_queue q
    CROSS JOIN LATERAL (
        SELECT c AS place FROM pgqueue_cursor c WHERE c.queue_id = q.id ORDER BY c.number DESC LIMIT 1) p
    CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.enqueued_xid >= pg_snapshot_xmin((p.place).since)::text::bigint
          AND NOT pgqueue_passed(p.place, m.enqueued_xid, m.id)
        LIMIT 1) m
    WHERE q.source_id = {queue_id}
) OR EXISTS (
    SELECT FROM pgqueue_queue q JOIN pgqueue_lease l ON l.queue_id = q.id
    CROSS JOIN LATERAL unnest(l.ids) AS u (id)
    CROSS JOIN LATERAL (SELECT FROM {message} m WHERE m.id = u.id OFFSET 0) m
    WHERE q.source_id = {queue_id}
)
