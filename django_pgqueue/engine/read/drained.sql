-- Whether nothing is left to do: no message is ready, due or waiting for its next attempt, and no
-- group has a recheck or waits for its rate. Scheduled messages and those in flight do not count.
SELECT NOT EXISTS (SELECT FROM pgqueue_ready WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM pgqueue_recheck WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM pgqueue_deferred
                   WHERE queue_id = {queue_id} AND {places/due})
   AND NOT EXISTS (SELECT FROM pgqueue_lease
                   WHERE queue_id = {queue_id} AND {places/due})
   AND NOT EXISTS (SELECT FROM pgqueue_deferred
                   WHERE queue_id = {queue_id} AND state = 'RETRYABLE')
   AND NOT EXISTS (SELECT FROM pgqueue_queue q JOIN pgqueue_group g ON g.queue_id = q.id
                   WHERE q.id = {queue_id} AND q.group_rate IS NOT NULL
                     AND g.head IS NOT NULL AND g.free_at > statement_timestamp())
