-- Part that other statements include: the stored position.
SELECT * FROM pgqueue_cursor WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1
