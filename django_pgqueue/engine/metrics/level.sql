-- Part that other statements include: the distinct priorities of the ready messages in queue {of},
-- each found by one index probe.
level AS (
    (SELECT -priority AS rank FROM pgqueue_ready WHERE queue_id = {of} ORDER BY -priority LIMIT 1)
    UNION ALL
    SELECT (SELECT -r.priority FROM pgqueue_ready r
            WHERE r.queue_id = {of} AND -r.priority > level.rank
            ORDER BY -r.priority LIMIT 1)
    FROM level WHERE level.rank IS NOT NULL
)
