-- The number of groups whose messages fill a batch of qty. Adds up the messages of one group after
-- another, in the order of reads, until there are enough. Locks nothing. P1.
WITH RECURSIVE line AS MATERIALIZED (
    SELECT array_agg(group_key) AS groups FROM (
        (SELECT d.group_key FROM pgqueue_deferred d
         WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
         ORDER BY d.vt LIMIT (SELECT %(qty)s::bigint))
        UNION ALL
        (SELECT r.group_key FROM pgqueue_ready r
         WHERE r.queue_id = {queue_id}
         ORDER BY -r.priority, r.turn LIMIT (SELECT %(qty)s::bigint))
    ) first
),
walk AS (
    SELECT 0 AS heads, 0::bigint AS messages
    UNION ALL
    SELECT w.heads + 1, w.messages + 1 + behind.number
    FROM walk w CROSS JOIN line l CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT FROM pgqueue_waiting q
            WHERE q.queue_id = {queue_id} AND q.group_key = l.groups[w.heads + 1]
            ORDER BY q.id
            LIMIT %(qty)s - w.messages) q) behind
    WHERE w.messages < %(qty)s AND w.heads < cardinality(l.groups)
)
SELECT max(heads) FROM walk
