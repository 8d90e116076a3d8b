-- After a restore: the id behind which the subscription goes on.
SELECT {subscriptions/last_read}
FROM (SELECT c AS place FROM pgqueue_cursor c WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1) p
