-- Messages of a dead-letter queue that nobody holds, in order, with the queue they came from.
SELECT l.id, m.headers #>> '{{x-dead-letter,source}}'
FROM (
    (SELECT id FROM {ready}
     WHERE queue_id = {queue_id} AND id > %(after)s
       AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[])))
    UNION ALL
    (SELECT id FROM {waiting}
     WHERE queue_id = {queue_id} AND id > %(after)s
       AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[])))
    UNION ALL
    (SELECT id FROM {deferred}
     WHERE queue_id = {queue_id} AND id > %(after)s
       AND (state <> 'PROCESSING' OR vt <= statement_timestamp())
       AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[])))
) l
CROSS JOIN LATERAL (SELECT headers, body FROM {message} WHERE id = l.id OFFSET 0) m
WHERE %(filter)s::jsonb IS NULL OR m.body @> %(filter)s::jsonb
ORDER BY l.id
LIMIT %(batch)s
