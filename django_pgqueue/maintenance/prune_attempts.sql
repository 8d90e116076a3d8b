-- Deletes those of these attempts whose message no queue has. Searches the tables of all queues.
DELETE FROM pgqueue_attempt a WHERE a.id = ANY(%(ids)s::bigint[])
    AND NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = a.message_id)
RETURNING a.id
