-- Lease up to qty ready messages behind the last one that this process took (positions.py). Returns
-- nothing if a message is due, or if a group may lack a head: read.sql then takes messages in the
-- right order. A reader that knows of groups includes recheck.sql, which returns the note 'recheck' for
-- the latter. Writes one lease for each message (lease_each.sql), or one for all messages of a priority
-- (lease_batch.sql). A batch lease cannot include heads of groups, so with lease_batch.sql the part
-- has_groups.sql makes this return nothing if the queue has groups. A ready message of a higher priority
-- makes the scan begin at the start. P1, P2, P6.
WITH taken AS (
    DELETE FROM pgqueue_ready WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_ready
        WHERE queue_id = {queue_id} AND (-priority, turn) > (
            CASE WHEN (SELECT true FROM pgqueue_ready
                       WHERE queue_id = {queue_id} AND -priority < (SELECT %(rank)s::smallint)
                       ORDER BY -priority, turn LIMIT 1)
                 THEN -101 ELSE %(rank)s END, (SELECT %(after)s::bigint))
        ORDER BY -priority, turn
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
                     OR (SELECT true FROM pgqueue_recheck
                         WHERE queue_id = {queue_id} AND id > (SELECT %(rechecked)s::bigint)
                         ORDER BY id LIMIT 1){has_groups}
                   THEN 0 ELSE %(qty)s END
        FOR UPDATE SKIP LOCKED))
    RETURNING id, turn, enqueued_at, priority, group_key
),
{leased}
SELECT {read/note}, t.id, 1, now.us, t.enqueued_at, t.priority, t.group_key, 0,
       now.us + (SELECT (extract(epoch FROM %(vt)s::interval) * 1000000::numeric)::bigint),
       now.us{read_columns}{read/turn}
FROM (SELECT (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint AS us) now
CROSS JOIN taken t {read/bodies}
WHERE {leases/unflushed}
{rechecks}
