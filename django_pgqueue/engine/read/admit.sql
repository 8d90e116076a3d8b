admit AS MATERIALIZED (
    SELECT * FROM pgqueue_admit({queue_id}, %(qty)s::bigint)
),
