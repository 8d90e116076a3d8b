-- The state of batches.

-- {batches/state}: the state of the batches of queue q as JSON; NULL without open ones, and ones abandoned in the last
-- day. A batch is done after it was abandoned, so an index on the time finds it.
(SELECT to_jsonb(b) FROM (
    SELECT count(*) FILTER (WHERE done_at IS NULL) AS open,
           coalesce(sum(members) FILTER (WHERE done_at IS NULL), 0) AS members,
           coalesce(sum(completed + failed + dead_lettered + cancelled + expired + replaced + deleted)
                    FILTER (WHERE done_at IS NULL), 0) AS ended,
           count(*) FILTER (WHERE error <> '') AS failing,
           max(id) FILTER (WHERE error <> '') AS newest_failing,
           (array_agg(left(error, 500) ORDER BY id DESC) FILTER (WHERE error <> ''))[1] AS error,
           (array_agg(then_queue ORDER BY id DESC) FILTER (WHERE error <> ''))[1] AS then_queue,
           count(*) FILTER (WHERE is_late) AS abandoned,
           max(id) FILTER (WHERE is_late) AS newest_abandoned,
           min(sealed_at) FILTER (WHERE is_late) AS first_at,
           max(sealed_at) FILTER (WHERE is_late) AS last_at
    FROM (SELECT *, abandoned AND cancelled_at IS NULL
                    AND sealed_at > statement_timestamp() - interval '1 day' AS is_late
          FROM pgqueue_batch
          WHERE queue_id = q.id
            AND (done_at IS NULL OR (done_at > statement_timestamp() - interval '1 day' AND abandoned))) each) b
 WHERE b.open > 0 OR b.abandoned > 0)

-- {batches/health}: the state of each queue's batches
SELECT name, state FROM (SELECT q.name, {state}::text AS state FROM pgqueue_queue q OFFSET 0) s
WHERE state IS NOT NULL
ORDER BY name
