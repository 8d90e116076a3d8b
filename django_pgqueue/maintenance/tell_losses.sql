-- How many messages a subscription has lost since this was asked last.
WITH place AS MATERIALIZED (
    SELECT ctid, lost - told AS lost FROM pgqueue_cursor
    WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1
    FOR UPDATE SKIP LOCKED
),
told AS (
    UPDATE pgqueue_cursor SET told = lost
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM place WHERE lost > 0))
)
SELECT coalesce((SELECT lost FROM place), 0)
