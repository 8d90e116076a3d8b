-- The next messages in a dead-letter queue's partition, by id, each with its source queue. The last
-- column says whether the message can be redriven: it matches, is live, and is not in flight. Pages
-- through the partition, which has an index on id. Paging through the live tables would sort every
-- page.
WITH looked AS MATERIALIZED (
    SELECT id, priority, group_key, headers #>> '{{x-dead-letter,source}}' AS source,
           CASE WHEN %(conditional)s::jsonb IS NULL THEN true
                ELSE body @> %(conditional)s::jsonb END AS asked
    FROM {message}
    WHERE id > %(after)s AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
    ORDER BY id
    LIMIT (SELECT %(batch)s::bigint)
)
SELECT m.id, m.source, m.asked AND s.in_flight IS FALSE
FROM looked m LEFT JOIN LATERAL ({reasons/standing}) s ON true
ORDER BY m.id
