-- Complete or cancel messages in any state, without a fence: an operator's tool.
WITH held AS (
    DELETE FROM pgqueue_deferred
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND (%(in_flight)s::boolean OR NOT ({places/in_flight}))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
),
{settle/place},
unread AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(SELECT ready FROM place))
    RETURNING id, enqueued_at, NULL::timestamptz, NULL::timestamptz, 0, 0
),
queued AS (
    DELETE FROM pgqueue_waiting WHERE ctid = ANY(ARRAY(SELECT waiting FROM place))
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
),
gone AS (
    SELECT * FROM held UNION ALL SELECT * FROM unread UNION ALL SELECT * FROM queued
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, error)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts, %(state)s,
       %(reason)s::text
FROM gone
RETURNING id
