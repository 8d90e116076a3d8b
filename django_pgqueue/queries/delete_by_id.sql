-- Whatever state the message is in, as long as it is in the queue: the archive stays.
WITH held AS (
    DELETE FROM {deferred}
    WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
    RETURNING id
),
place AS MATERIALIZED (
    SELECT r.ctid
    FROM unnest(%(ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (SELECT id, priority FROM {message} WHERE id = given.id OFFSET 0) m
    CROSS JOIN LATERAL (
        SELECT ctid FROM {ready} r
        WHERE r.queue_id = {queue_id} AND r.priority = m.priority AND r.id = m.id OFFSET 0) r
),
unread AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM place))
    RETURNING id
)
DELETE FROM {message}
WHERE id = ANY(ARRAY(SELECT id FROM held UNION ALL SELECT id FROM unread))
RETURNING id
