-- Why a message of a subscription is not delivered now: one of its own, one in a lease, or one of the
-- source's that is unread. And whether it is leased. P3, P5.
WITH place AS MATERIALIZED (
    SELECT c FROM pgqueue_cursor c WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1
),
asked AS MATERIALIZED (
    SELECT {queue_id} AS queue_id, m.group_key, s.*
    FROM (
        (SELECT id, priority::smallint, group_key, NULL::timestamptz AS scheduled_at, false AS is_unread
         FROM {message} WHERE id = %(id)s LIMIT 1)
        UNION ALL
        (SELECT m.id, m.priority, m.group_key, m.scheduled_at,
                (NOT pgqueue_passed(p.c, m.enqueued_xid, m.id) AND NOT ({subscriptions/skipped})) IS TRUE
         FROM {source_message} m LEFT JOIN place p ON true WHERE m.id = %(id)s LIMIT 1)
        LIMIT 1) m
    CROSS JOIN LATERAL (
        (SELECT * FROM ({reasons/standing}) standing)
        UNION ALL
        (SELECT m.scheduled_at, 0, false, (m.scheduled_at > statement_timestamp()) IS TRUE, false, false, 0
         WHERE m.is_unread)
        LIMIT 1) s
),
{reasons/facts}
SELECT {reasons/reason} AS reason, {reasons/until} AS until, s.in_flight
FROM {reasons/from}
