-- Messages and every row about them: what deleting by the ORM means.
WITH held AS (
    DELETE FROM {deferred} WHERE id = ANY(%(ids)s::bigint[]) AND queue_id + 0 = {queue_id}
),
place AS MATERIALIZED (
    SELECT r.ctid
    FROM {message} m CROSS JOIN LATERAL (
        SELECT ctid FROM {ready} r
        WHERE r.queue_id = {queue_id} AND r.priority = m.priority AND r.id = m.id OFFSET 0) r
    WHERE m.id = ANY(%(ids)s::bigint[])
),
unread AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(SELECT ctid FROM place))
),
done AS (
    DELETE FROM {archive} WHERE id = ANY(%(ids)s::bigint[])
)
DELETE FROM {message} WHERE id = ANY(%(ids)s::bigint[]) RETURNING id
