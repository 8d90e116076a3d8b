-- Only where the message is in no other queue either: this looks into the tables of each queue.
DELETE FROM pgqueue_attempt a WHERE a.id = ANY(%(ids)s::bigint[])
    AND NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = a.message_id)
RETURNING a.id
