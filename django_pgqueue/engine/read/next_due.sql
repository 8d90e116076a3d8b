-- Seconds until the next delayed or leased message is due, or until the queue's rate admits the next
-- message; NULL if there is none.
SELECT extract(epoch FROM least(
    (SELECT vt FROM pgqueue_deferred WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1),
    (SELECT vt FROM pgqueue_lease WHERE queue_id = {queue_id} ORDER BY vt LIMIT 1),
    (SELECT free_at FROM pgqueue_group WHERE queue_id = {queue_id} AND group_key = '' AND slot = -1
                                         AND free_at > statement_timestamp())
) - statement_timestamp())::float
