-- Deletes the given attempts whose message is in no queue's table. Searches all queues' tables.
DELETE FROM pgqueue_attempt a WHERE a.id = ANY(%(ids)s::bigint[])
    AND NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = a.message_id)
RETURNING a.id
