-- Messages and every row about them: what deleting by the ORM means. The length of the list is
-- hidden from the planner, which would read all of a leaf that has no statistics yet.
WITH held AS (
    DELETE FROM {deferred} WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
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
),
queued AS (
    DELETE FROM {waiting} WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
),
done AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) RETURNING id
