-- Delete messages of the queue in any state, without a fence. Archived messages stay.
WITH held AS (
    DELETE FROM pgqueue_deferred
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND (%(in_flight)s::boolean OR NOT ({places/in_flight}))
    RETURNING id
),
{settle/place},
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
    RETURNING id
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id
)
DELETE FROM {message}
WHERE id = ANY(ARRAY(SELECT id FROM held UNION ALL SELECT id FROM unread
                     UNION ALL SELECT id FROM queued))
RETURNING id
