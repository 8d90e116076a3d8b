-- Statements of taking.py, a part each.

-- {taking/any_up_to}
SELECT EXISTS (SELECT FROM pgqueue_ready WHERE queue_id = {queue_id} AND id <= %(pk)s)
    OR EXISTS (SELECT FROM pgqueue_deferred WHERE queue_id = {queue_id} AND id <= %(pk)s
               AND vt <= statement_timestamp())
    OR EXISTS (SELECT FROM pgqueue_lease WHERE queue_id = {queue_id} AND head <= %(pk)s
               AND vt <= statement_timestamp())
    OR EXISTS (SELECT FROM pgqueue_recheck r
               WHERE queue_id = {queue_id} AND %(pk)s >= (
                   SELECT id FROM pgqueue_waiting w
                   WHERE w.queue_id = {queue_id} AND w.group_key = r.group_key
                   ORDER BY id LIMIT 1))

-- {taking/groups}
SELECT id, group_key FROM {message}
WHERE id = ANY(%(ids)s::bigint[]) AND group_key IS NOT NULL

-- {taking/archived}
SELECT r.id, r.read_ct, r.read_at
FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
    AS r (id, read_ct, read_at)
CROSS JOIN LATERAL (SELECT last_read_at FROM {archive} a WHERE a.id = r.id OFFSET 0) a
WHERE {last_read_at} = r.read_at
