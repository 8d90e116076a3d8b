-- A batch of archived messages, sent again as new ones whose header says from which.
WITH picked AS MATERIALIZED (
    SELECT a.id, m.priority, m.group_key, m.headers, m.body
    FROM {archive} a
    CROSS JOIN LATERAL (
        SELECT priority, group_key, headers, body FROM {message} m
        WHERE m.id = a.id AND m.enqueued_at = a.enqueued_at OFFSET 0) m
    WHERE a.id > %(after)s AND a.id <= %(last)s
      AND (%(ids)s::bigint[] IS NULL OR a.id = ANY(%(ids)s::bigint[]))
      AND (%(state)s::text IS NULL OR a.state = %(state)s::text)
      AND (%(filter)s::jsonb IS NULL OR m.body @> %(filter)s::jsonb)
    ORDER BY a.id
    LIMIT %(batch)s
),
sent AS (
    INSERT INTO {target_message} (queue_id, priority, group_key, headers, body)
    SELECT {target_queue_id}, priority, group_key,
           CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{{}}' END
               || jsonb_build_object('x-replay-of', id),
           body
    FROM picked ORDER BY id
    RETURNING 1
)
SELECT (SELECT count(*) FROM sent), (SELECT max(id) FROM picked)
