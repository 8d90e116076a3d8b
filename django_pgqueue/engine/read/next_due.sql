-- Seconds until the next deferred message, or batch of leased ones, is due; NULL when none waits.
SELECT extract(epoch FROM least(
    (SELECT vt FROM pgqueue_deferred WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1),
    (SELECT vt FROM pgqueue_lease WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1)
) - statement_timestamp())::float
