-- In place of subscriptions/position.sql: the stored position, and if a round is under way, the position
-- of the round after it. What lies behind both is unread.
SELECT 1 AS round, s.* FROM (
    SELECT since, until, after_xid, after_id, system, lost FROM pgqueue_cursor
    WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1) s
UNION ALL
SELECT 2, until, NULL, 0, 0, system, lost FROM (
    SELECT until, system, lost FROM pgqueue_cursor
    WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1) s
WHERE until IS NOT NULL
