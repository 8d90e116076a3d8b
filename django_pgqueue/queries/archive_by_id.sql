-- Whatever state the message is in: an operator's tool, without a fence. Messages are looked up
-- one by one: for a list the planner reads all of a leaf that has no statistics yet.
WITH held AS (
    DELETE FROM {deferred}
    WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
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
    RETURNING id, enqueued_at, NULL::timestamptz, NULL::timestamptz, 0, 0
),
gone AS (
    SELECT * FROM held UNION ALL SELECT * FROM unread
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts, 'COMPLETED'
FROM gone
RETURNING id
