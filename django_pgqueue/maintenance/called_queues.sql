-- The queues of the callbacks of batches that were done before a time, with their ids; NULL: dropped, or no callback.
SELECT DISTINCT b.then_queue, q.id
FROM pgqueue_batch b LEFT JOIN pgqueue_queue q ON lower(q.name) = lower(b.then_queue)
WHERE b.queue_id = {queue_id} AND b.done_at < %(before)s
