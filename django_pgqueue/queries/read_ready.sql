-- Lease up to qty of what is ready, after what this process claimed last. Brings nothing as soon
-- as something is due or a group wants a head: then it is for read.sql to find the right order.
-- Leases either each message or all of them as one batch (lease_each, lease_batch), in which there
-- is no room for the heads of groups.
-- Under an old snapshot dead rows stay, and all before the bounds may be dead: a scan that starts
-- there passes by millions of them. A higher priority that came meanwhile lifts the bound.
-- Rows are taken by ctid: a join could be planned as a hash over the whole table. Whether there is
-- one is asked in the order of an index: EXISTS could be planned as a scan that hopes for the best.
-- Values that count for a plan are hidden from the planner: it would plan anew for each of them.
WITH taken AS (
    DELETE FROM {ready} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {ready}
        WHERE queue_id = {queue_id} AND (-priority, id) > (
            CASE WHEN (SELECT true FROM {ready}
                       WHERE queue_id = {queue_id} AND -priority < (SELECT %(rank)s::smallint)
                       ORDER BY -priority, id LIMIT 1)
                 THEN -101 ELSE %(rank)s END, (SELECT %(after)s::bigint))
        ORDER BY -priority, id
        LIMIT CASE WHEN (SELECT true FROM {deferred}
                         WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
                           AND vt > (SELECT %(due_after)s::timestamptz)
                         ORDER BY vt LIMIT 1)
                     OR (SELECT true FROM {lease}
                         WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
                           AND vt > (SELECT %(due_after)s::timestamptz)
                         ORDER BY vt LIMIT 1)
                     OR (SELECT true FROM {recheck} WHERE queue_id = {queue_id} ORDER BY id LIMIT 1)
                     OR (SELECT %(batched)s::boolean) AND (
                         SELECT true FROM {group} WHERE queue_id = {queue_id}
                         ORDER BY group_key LIMIT 1)
                   THEN 0 ELSE %(qty)s END
        FOR UPDATE SKIP LOCKED))
    RETURNING id, enqueued_at, priority, group_key
),
{leased}
SELECT t.id, m.body, m.headers, t.enqueued_at, t.priority, t.group_key,
       (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
FROM taken t {bodies}
