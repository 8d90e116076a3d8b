-- The last note about a message.
SELECT value::text FROM pgqueue_note WHERE queue_id = {queue_id} AND message_id = %(id)s::bigint
