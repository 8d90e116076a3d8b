-- Delete the wait of a message. Its outcome is stored in the same transaction.
DELETE FROM pgqueue_wait
WHERE queue_id = {queue_id} AND message_id = %(id)s::bigint AND name = %(name)s::text
RETURNING message_id
