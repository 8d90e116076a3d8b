-- The next messages in a dead-letter queue's partition, by id, each with its source queue. The last
-- column says whether it can be redriven: it matches, is live, and is not in flight. Pages through
-- the partition, which has an index on id. Paging through the live tables would sort every page.
WITH looked AS MATERIALIZED (
    SELECT id, priority, group_key, headers #>> '{{x-dead-letter,source}}' AS source,
           CASE WHEN %(conditional)s::jsonb IS NULL THEN true
                ELSE body @> %(conditional)s::jsonb END AS asked
    FROM {message}
    WHERE id > %(after)s AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
    ORDER BY id
    LIMIT (SELECT %(batch)s::bigint)
)
SELECT m.id, m.source, m.asked AND (d.found OR r.found OR w.found)
FROM looked m
LEFT JOIN LATERAL (
    SELECT true AS found FROM pgqueue_deferred d
    WHERE d.id = m.id AND d.queue_id + 0 = {queue_id}
      AND NOT ({places/in_flight}) OFFSET 0) d ON true
LEFT JOIN LATERAL (
    SELECT true AS found FROM pgqueue_ready r
    WHERE r.queue_id = {queue_id} AND -r.priority = -m.priority
      AND r.turn = {places/turn} AND r.id = m.id OFFSET 0) r ON true
LEFT JOIN LATERAL (
    SELECT true AS found FROM pgqueue_waiting w
    WHERE w.queue_id = {queue_id} AND w.group_key = m.group_key AND w.id = m.id OFFSET 0) w ON true
ORDER BY m.id
