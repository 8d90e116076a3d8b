-- Part that other statements include: deletes messages from ready, deferred and waiting. Finds none
-- in batch leases: the caller may unfold the leases first. If in_flight is false, skips messages in
-- flight.
held AS (
    DELETE FROM pgqueue_deferred
    WHERE {settle/chosen} AND (%(in_flight)s::boolean OR NOT ({places/in_flight}))
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
