leased AS (
    INSERT INTO pgqueue_lease (head, tail, vt, read_at, queue_id, process_id, priority, ids, enqueued_ats)
    SELECT min(id), max(id), statement_timestamp() + %(vt)s, statement_timestamp(), {queue_id},
           %(process_id)s::integer, priority, array_agg(id ORDER BY id),
           array_agg(enqueued_at ORDER BY id)
    FROM taken
    GROUP BY priority
)
