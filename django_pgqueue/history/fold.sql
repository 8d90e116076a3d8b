-- Merges a queue's rows of one minute (span 60) or of one hour (span 3600) into one row, for a batch
-- of queues and spans. Consumers no longer write to a merged row (note.sql).
WITH chosen AS MATERIALIZED (
    SELECT DISTINCT queue_id,
           date_bin(make_interval(secs => %(span)s), bucket, timestamptz 'epoch') AS start
    FROM pgqueue_history
    WHERE seconds = 60 AND bucket >= %(first)s AND bucket < %(until)s
      AND (process_id <> 0 OR %(span)s > 60)
    LIMIT (SELECT %(batch)s::bigint)
),
gone AS (
    DELETE FROM pgqueue_history h USING chosen c
    WHERE h.queue_id = c.queue_id AND h.bucket >= c.start
      AND h.bucket < c.start + make_interval(secs => %(span)s) AND h.seconds <= %(span)s
    RETURNING h.*, c.start
),
times AS (
    SELECT queue_id, start,
           jsonb_object_agg(key, number) FILTER (WHERE kind = 'waits') AS waits,
           jsonb_object_agg(key, number) FILTER (WHERE kind = 'runs') AS runs
    FROM (
        SELECT g.queue_id, g.start, t.kind, t.key, sum(t.value::bigint) AS number
        FROM gone g CROSS JOIN LATERAL (
            SELECT 'waits' AS kind, key, value FROM jsonb_each_text(g.waits)
            UNION ALL SELECT 'runs', key, value FROM jsonb_each_text(g.runs)) t
        GROUP BY 1, 2, 3, 4) each
    GROUP BY 1, 2
),
processes AS (
    SELECT queue_id, start, jsonb_object_agg(key, number) AS by_process
    FROM (
        SELECT g.queue_id, g.start, p.key, sum(p.number) AS number
        FROM gone g CROSS JOIN LATERAL (
            SELECT g.process_id::text AS key, {ended} AS number WHERE g.process_id <> 0
            UNION ALL SELECT key, value::bigint FROM jsonb_each_text(g.by_process)) p
        WHERE p.number > 0
        GROUP BY 1, 2, 3) each
    GROUP BY 1, 2
),
put AS (
    INSERT INTO pgqueue_history
        (queue_id, bucket, seconds, process_id, {counters}, waits, runs, by_process, sent,
         depth, oldest, total)
    SELECT g.queue_id, g.start, %(span)s, 0, {sums},
           coalesce((array_agg(t.waits))[1], '{{}}'), coalesce((array_agg(t.runs))[1], '{{}}'),
           (array_agg(p.by_process))[1], sum(g.sent), max(g.depth), max(g.oldest),
           (array_agg(g.total ORDER BY g.bucket DESC) FILTER (WHERE g.total IS NOT NULL))[1]
    FROM gone g LEFT JOIN times t USING (queue_id, start)
    LEFT JOIN processes p USING (queue_id, start)
    GROUP BY g.queue_id, g.start
)
SELECT count(*) FROM chosen
