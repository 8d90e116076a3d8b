-- Returns a page of the messages that have rows of {kept} (steps or notes), in the order of their ids: the last id, how
-- many messages, and those that are neither in this queue nor in its source or its dead-letter queue.
SELECT max(l.message_id), count(*), coalesce(array_agg(l.message_id) FILTER (
    WHERE (SELECT true FROM {message} m WHERE m.id = l.message_id LIMIT 1) IS NULL
      AND (SELECT true FROM {source_message} s WHERE s.id = l.message_id LIMIT 1) IS NULL
      AND (SELECT true FROM {dead_message} d WHERE d.id = l.message_id LIMIT 1) IS NULL), '{{}}')
FROM (SELECT DISTINCT message_id FROM {kept}
      WHERE queue_id = {queue_id} AND message_id > %(after)s ORDER BY message_id LIMIT %(batch)s) l
