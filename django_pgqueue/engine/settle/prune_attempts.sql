-- In the order of an index, a page at a time: the statement stays short however many there are.
WITH looked AS MATERIALIZED (
    SELECT id, message_id, at FROM pgqueue_attempt
    WHERE queue_id = {queue_id} AND at < coalesce(%(before)s::timestamptz, statement_timestamp())
      AND (at, id) > (%(at)s::timestamptz, %(id)s::bigint)
    ORDER BY at, id LIMIT %(batch)s
),
gone AS (
    DELETE FROM pgqueue_attempt WHERE id = ANY(ARRAY(
        SELECT id FROM looked l
        WHERE NOT EXISTS (SELECT FROM pgqueue_message m WHERE m.id = l.message_id)))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM looked), l.at, l.id
FROM looked l ORDER BY l.at DESC, l.id DESC LIMIT 1
