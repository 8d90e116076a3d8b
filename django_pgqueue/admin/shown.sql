-- Whether each part of the admin is in use, in the order of ADMIN_PARTS.
SELECT EXISTS (SELECT FROM pgqueue_schedule),
       EXISTS (SELECT FROM pgqueue_binding),
       EXISTS (SELECT FROM pgqueue_lake),
       EXISTS (SELECT FROM pgqueue_rollup) OR EXISTS (SELECT FROM pgqueue_rollup_run),
       EXISTS (SELECT FROM pgqueue_batch)
