-- Move messages that are not in flight to another queue, with their ids and headers. The trigger on that
-- queue's partition makes them readable. P3.
WITH held AS (
    DELETE FROM pgqueue_deferred
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND NOT ({places/in_flight})
    RETURNING id
),
{settle/place},
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id
),
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
    RETURNING id
),
moved AS (
    DELETE FROM {message}
    WHERE id = ANY(ARRAY(SELECT id FROM held UNION ALL SELECT id FROM unread
                         UNION ALL SELECT id FROM queued))
    RETURNING id, priority, group_key, unique_key, headers, body
)
INSERT INTO {target_message} (id, queue_id, priority, group_key, unique_key, headers, body)
SELECT id, {target_queue_id}, priority, group_key, unique_key, headers, body FROM moved
RETURNING id
