-- Take back what is in flight, put off, waiting for a retry or archived, if the source has it behind the
-- new position: it comes again from there, and a message has one place. Returns how many were found. What
-- others have changed meanwhile is in another place now: call it until it finds none.
WITH place AS MATERIALIZED (
    SELECT c FROM pgqueue_cursor c WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1
),
held AS MATERIALIZED (
    SELECT l.head, l.read_at, array_agg(u.id) AS ids
    FROM place p CROSS JOIN pgqueue_lease l CROSS JOIN LATERAL unnest(l.ids) AS u (id)
    CROSS JOIN LATERAL (
        SELECT FROM {source_message} m
        WHERE m.id = u.id AND NOT pgqueue_passed(p.c, m.enqueued_xid, m.id)
          AND NOT ({subscriptions/skipped}) OFFSET 0) m
    WHERE l.queue_id = {queue_id}
    GROUP BY l.head, l.read_at
),
released AS MATERIALIZED (
    SELECT pgqueue_leave_lease(head, {queue_id}, read_at, ids) FROM held
),
own AS MATERIALIZED (
    SELECT o.id
    FROM place p CROSS JOIN (SELECT id FROM {message} UNION SELECT id FROM {archive}) o
    CROSS JOIN LATERAL (
        SELECT FROM {source_message} m
        WHERE m.id = o.id AND NOT pgqueue_passed(p.c, m.enqueued_xid, m.id)
          AND NOT ({subscriptions/skipped}) OFFSET 0) m
),
-- In the order in which acks lock them. The rows are deleted by their ids: one that was changed while
-- this waited for it has a version that only the lock has seen.
locked AS MATERIALIZED (
    SELECT id FROM pgqueue_deferred
    WHERE id = ANY(ARRAY(SELECT id FROM own)) AND queue_id + 0 = {queue_id}
    ORDER BY id
    FOR UPDATE
),
deferred AS (
    DELETE FROM pgqueue_deferred
    WHERE (SELECT count(*) FROM locked) > 0
      AND id = ANY(ARRAY(SELECT id FROM own)) AND queue_id + 0 = {queue_id}
),
ready AS (
    DELETE FROM pgqueue_ready
    WHERE queue_id = {queue_id} AND id = ANY(ARRAY(SELECT id FROM own))
),
archived AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT id FROM own))
),
bodies AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM own))
)
SELECT (SELECT count(*) FROM released) + (SELECT count(*) FROM own)
