-- Delete waits of messages that have ended: cancelled, replaced or expired. A message that waits is in deferred.
DELETE FROM pgqueue_wait WHERE ctid = ANY(ARRAY(
    SELECT w.ctid FROM pgqueue_wait w
    WHERE w.queue_id = {queue_id}
      AND (SELECT true FROM pgqueue_deferred d
           WHERE d.id = w.message_id AND d.queue_id + 0 = {queue_id} LIMIT 1) IS NULL
    LIMIT %(batch)s))
RETURNING message_id
