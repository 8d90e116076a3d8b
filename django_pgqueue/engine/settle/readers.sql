-- The names of the queue's subscriptions, and of their dead-letter queues.
SELECT q.name, d.name FROM pgqueue_queue q
LEFT JOIN pgqueue_queue d ON d.id = q.dead_letter_queue_id
WHERE q.source_id = {queue_id}
ORDER BY q.id
