admit AS MATERIALIZED (
    SELECT pgqueue_admit({queue_id}, %(qty)s::bigint) AS number
),
