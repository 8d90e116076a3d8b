-- Leases of whole batches become rows of deferred, one for each message, where it is found by its
-- id. Returns how many. Of which leases is one of unfold_given, unfold_ids and unfold_due.
WITH gone AS (
    DELETE FROM {lease}
    WHERE head = ANY({heads}) AND queue_id + 0 = {queue_id}
    RETURNING *
),
each AS (
    INSERT INTO {deferred} (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, worker, priority, state)
    SELECT m.id, vt, m.enqueued_at, read_at, read_at, {queue_id}, 1, worker, priority, 'PROCESSING'
    FROM gone CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    RETURNING id
)
SELECT count(*) FROM each
