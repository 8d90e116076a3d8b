-- Unfold expired batch leases, a hundred at a time. P1, P2.
WITH gone AS (
    DELETE FROM pgqueue_lease WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_lease
        WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
        ORDER BY vt LIMIT (SELECT 100)
        FOR UPDATE SKIP LOCKED))
    RETURNING *
),
{leases/rows}
SELECT id FROM each WHERE {leases/unflushed} LIMIT 1
