-- Store the first position of a subscription.
INSERT INTO pgqueue_cursor (queue_id, system, since, until, after_xid, after_id)
SELECT {queue_id}, system_identifier, %(since)s::pg_snapshot, %(until)s::pg_snapshot,
       %(after_xid)s::bigint, %(after_id)s::bigint
FROM pg_control_system()
RETURNING queue_id
