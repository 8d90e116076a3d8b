-- Whatever state the message is in, as long as it is in the queue: the archive stays.
WITH held AS (
    DELETE FROM {deferred}
    WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
    RETURNING id
),
place AS MATERIALIZED (
    SELECT r.ctid AS ready, w.ctid AS waiting
    FROM unnest(%(ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id, priority, group_key FROM {message} WHERE id = given.id OFFSET 0) m
    LEFT JOIN LATERAL (
        SELECT ctid FROM {ready} r
        WHERE r.queue_id = {queue_id} AND -r.priority = -m.priority AND r.id = m.id OFFSET 0) r ON true
    LEFT JOIN LATERAL (
        SELECT ctid FROM {waiting} w
        WHERE w.queue_id = {queue_id} AND w.group_key = m.group_key AND w.id = m.id OFFSET 0) w ON true
),
unread AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
    RETURNING id
),
queued AS (
    DELETE FROM {waiting} WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id
)
DELETE FROM {message}
WHERE id = ANY(ARRAY(SELECT id FROM held UNION ALL SELECT id FROM unread
                     UNION ALL SELECT id FROM queued))
RETURNING id
