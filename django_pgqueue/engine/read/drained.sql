-- Whether nothing is left to do: no message is ready, due or waiting for its next attempt, and no
-- group lacks a head. Messages that are scheduled or in flight do not count.
SELECT NOT EXISTS (SELECT FROM pgqueue_ready WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM pgqueue_recheck WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM pgqueue_deferred
                   WHERE queue_id = {queue_id} AND {places/due})
   AND NOT EXISTS (SELECT FROM pgqueue_lease
                   WHERE queue_id = {queue_id} AND {places/due})
   AND NOT EXISTS (SELECT FROM pgqueue_deferred
                   WHERE queue_id = {queue_id} AND state = 'RETRYABLE')
