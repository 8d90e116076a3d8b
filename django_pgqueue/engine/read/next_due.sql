-- Seconds until the next delayed or leased message is due; NULL if there is none.
SELECT extract(epoch FROM least(
    (SELECT vt FROM pgqueue_deferred WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1),
    (SELECT vt FROM pgqueue_lease WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1)
) - statement_timestamp())::float
