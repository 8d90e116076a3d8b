-- Whatever state the message is in: an operator's tool, without a fence. Messages are looked up
-- one by one: for a list the planner reads all of a leaf that has no statistics yet.
WITH held AS (
    DELETE FROM {deferred}
    WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
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
    RETURNING id, enqueued_at, NULL::timestamptz, NULL::timestamptz, 0, 0
),
queued AS (
    DELETE FROM {waiting} WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
),
gone AS (
    SELECT * FROM held UNION ALL SELECT * FROM unread UNION ALL SELECT * FROM queued
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts, 'COMPLETED'
FROM gone
RETURNING id
