-- Returns a page of attempts, each with whether its message still exists, in this queue or in the
-- dead-letter queue.
-- Pages are in index order, so that the statement is fast for any number of attempts.
WITH looked AS MATERIALIZED (
    SELECT id, message_id, at FROM pgqueue_attempt
    WHERE queue_id = {queue_id} AND at < coalesce(%(before)s::timestamptz, statement_timestamp())
      AND (at, id) > (%(at)s::timestamptz, %(id)s::bigint)
    ORDER BY at, id LIMIT %(batch)s
)
SELECT l.id, l.at, EXISTS (SELECT FROM {message} m WHERE m.id = l.message_id)
                   OR EXISTS (SELECT FROM {dead_message} d WHERE d.id = l.message_id)
FROM looked l ORDER BY l.at, l.id
