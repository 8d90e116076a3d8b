-- Returns a page of {kept} (steps, notes or waits) in the order of the messages' ids: its last id, how many rows it
-- has, and the messages that are neither in this queue nor in the dead-letter queue.
SELECT max(l.message_id), count(*), coalesce(array_agg(DISTINCT l.message_id) FILTER (
    WHERE (SELECT true FROM {message} m WHERE m.id = l.message_id LIMIT 1) IS NULL
      AND (SELECT true FROM {dead_message} d WHERE d.id = l.message_id LIMIT 1) IS NULL), '{{}}')
FROM (SELECT message_id FROM {kept}
      WHERE queue_id = {queue_id} AND message_id > %(after)s ORDER BY message_id LIMIT %(batch)s) l
