-- Part that other statements include: the ctids of the messages' rows in ready and waiting. P5.
place AS MATERIALIZED (
    SELECT r.ctid AS ready, w.ctid AS waiting
    FROM unnest(%(ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id, priority, group_key FROM {message} WHERE id = given.id OFFSET 0) m
    LEFT JOIN LATERAL (
        SELECT ctid FROM pgqueue_ready r
        WHERE r.queue_id = {queue_id} AND -r.priority = -m.priority
          AND r.turn = {places/turn} AND r.id = m.id OFFSET 0) r ON true
    LEFT JOIN LATERAL (
        SELECT ctid FROM pgqueue_waiting w
        WHERE w.queue_id = {queue_id} AND w.group_key = m.group_key AND w.id = m.id OFFSET 0) w ON true
)
