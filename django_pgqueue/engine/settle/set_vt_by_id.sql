-- Set the visibility timeout of any live message. A waiting message keeps its position in its
-- group. It is not delivered before that time, and neither are the messages behind it in a FIFO
-- group.
WITH moved AS (
    UPDATE pgqueue_deferred
    SET vt = coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
    WHERE {settle/chosen} AND (%(in_flight)s::boolean OR NOT ({places/in_flight}))
    RETURNING id
),
{settle/place},
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
    RETURNING id, enqueued_at, priority, group_key
),
deferred AS (
    INSERT INTO pgqueue_deferred (id, vt, enqueued_at, queue_id, priority, state, group_key)
    SELECT id, coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval),
           enqueued_at, {queue_id}, priority, 'SCHEDULED', group_key
    FROM unread
    RETURNING id
),
queued AS (
    UPDATE pgqueue_waiting
    SET vt = coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
    WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id
)
SELECT id FROM moved UNION ALL SELECT id FROM deferred UNION ALL SELECT id FROM queued
