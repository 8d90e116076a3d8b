ARRAY(
        SELECT head FROM {lease}
        WHERE queue_id = {queue_id} AND vt <= statement_timestamp()
        ORDER BY vt LIMIT (SELECT %(batches)s::bigint)
        FOR UPDATE SKIP LOCKED)
