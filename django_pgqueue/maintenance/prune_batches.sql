-- Delete batches that were done before a time, with callbacks to one queue, whose messages have ended.
DELETE FROM pgqueue_batch WHERE id = ANY(ARRAY(
    SELECT b.id FROM pgqueue_batch b
    WHERE b.queue_id = {queue_id} AND b.done_at < %(before)s AND b.then_queue = %(then)s
      AND (SELECT true FROM {then_message} m
           WHERE m.id = b.callback_id
             AND (SELECT true FROM {then_archive} a WHERE a.id = m.id LIMIT 1) IS NULL LIMIT 1) IS NULL
    LIMIT %(batch)s))
RETURNING id
