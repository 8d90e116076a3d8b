-- Delete the given messages' rows of {kept} if the messages are in no queue's table. Searches all queues' tables.
DELETE FROM {kept} k
WHERE k.queue_id = {queue_id} AND k.message_id = ANY(%(ids)s::bigint[])
  AND NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = k.message_id)
RETURNING k.message_id
