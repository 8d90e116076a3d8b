-- Send up to batch archived messages again, as new messages whose header has the old id. Returns
-- the numbers of messages sent and of outcomes examined, and the id to continue after. Takes a page
-- by the index on id, then filters it: otherwise the planner may sort the whole archive each time.
WITH looked AS MATERIALIZED (
    SELECT id, enqueued_at, state FROM {archive}
    WHERE id > %(after)s AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
    ORDER BY id
    LIMIT (SELECT %(page)s::bigint)
),
picked AS MATERIALIZED (
    SELECT a.id, m.*
    FROM looked a
    CROSS JOIN LATERAL (
        SELECT headers, {kept_columns} FROM {message} m
        WHERE m.id = a.id AND m.enqueued_at = a.enqueued_at OFFSET 0) m
    WHERE a.id <= %(last)s
      AND (%(state)s::text IS NULL OR a.state = %(state)s::text)
      AND (%(conditional)s::jsonb IS NULL OR m.body @> %(conditional)s::jsonb)
    ORDER BY a.id
    LIMIT %(batch)s
),
sent AS (
    INSERT INTO {target_message} (queue_id, headers, {kept_columns})
    SELECT {target_queue_id},
           -- A new message has not been in a dead-letter queue.
           CASE jsonb_typeof(headers) WHEN 'object' THEN headers - 'x-dead-letter' ELSE '{{}}' END
               || jsonb_build_object('x-replay-of', id),
           {kept_columns}
    FROM picked ORDER BY id
    RETURNING 1
),
-- A failed message that was sent again no longer needs attention.
closed AS (
    UPDATE {archive} SET failure = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM picked)) AND failure IS NOT NULL
)
SELECT (SELECT count(*) FROM sent), (SELECT count(*) FROM looked),
       CASE WHEN (SELECT count(*) FROM picked) = %(batch)s THEN (SELECT max(id) FROM picked)
            ELSE (SELECT max(id) FROM looked) END
