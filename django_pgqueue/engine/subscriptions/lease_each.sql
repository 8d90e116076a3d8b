leased AS (
    INSERT INTO pgqueue_lease (head, tail, vt, read_at, queue_id, process_id, priority, ids, enqueued_ats)
    SELECT id, id, statement_timestamp() + %(vt)s, statement_timestamp(), {queue_id},
           %(process_id)s::integer, priority, ARRAY[id], ARRAY[enqueued_at::timestamptz]
    FROM taken
)
