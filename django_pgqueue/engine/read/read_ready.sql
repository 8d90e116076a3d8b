-- Lease up to qty ready messages, behind the last row that this process claimed. Returns nothing as
-- soon as a message is due or a group may have a new head: then read.sql finds the right order.
-- Leases each message by a row, or all of one priority as a batch (lease_each.sql,
-- lease_batch.sql), which has no room for heads of groups. Under an old snapshot dead rows stay,
-- and all rows before the bounds may be dead: a scan that starts there skips millions of them. A
-- higher priority that came meanwhile lifts the bound. P1, P2, P6.
WITH taken AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_ready
        WHERE queue_id = {queue_id} AND (-priority, id) > (
            CASE WHEN (SELECT true FROM pgqueue_ready
                       WHERE queue_id = {queue_id} AND -priority < (SELECT %(rank)s::smallint)
                       ORDER BY -priority, id LIMIT 1)
                 THEN -101 ELSE %(rank)s END, (SELECT %(after)s::bigint))
        ORDER BY -priority, id
        LIMIT CASE WHEN (SELECT true FROM pgqueue_deferred
                         WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
                           AND vt > (SELECT timestamptz 'epoch'
                                            + %(due_after)s::float8 * interval '1 microsecond')
                         ORDER BY vt LIMIT 1)
                     OR (SELECT true FROM pgqueue_lease
                         WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
                           AND vt > (SELECT timestamptz 'epoch'
                                            + %(due_after)s::float8 * interval '1 microsecond')
                         ORDER BY vt LIMIT 1)
                     OR (SELECT true FROM pgqueue_recheck WHERE queue_id = {queue_id} ORDER BY id LIMIT 1)
                     OR (SELECT %(batched)s::boolean) AND (
                         SELECT true FROM pgqueue_group WHERE queue_id = {queue_id}
                         ORDER BY group_key LIMIT 1)
                   THEN 0 ELSE %(qty)s END
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, priority, group_key
),
{leased}
SELECT NULL::text, t.id, 1, now.us, m.body, m.headers, t.enqueued_at, t.priority, t.group_key, 0,
       now.us + (SELECT (extract(epoch FROM %(vt)s::interval) * 1000000::numeric)::bigint), now.us
FROM (SELECT (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint AS us) now
CROSS JOIN taken t
CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at OFFSET 0) m
WHERE {leases/unflushed}
