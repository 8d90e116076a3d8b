-- Whether nothing is left to do: nothing ready, nothing due, nothing waiting to be tried
-- again, no group that may get a head.
-- What is scheduled for later, or held by another consumer, is not waited for.
SELECT NOT EXISTS (SELECT FROM {ready} WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM {recheck} WHERE queue_id = {queue_id})
   AND NOT EXISTS (SELECT FROM {deferred}
                   WHERE queue_id = {queue_id} AND vt <= statement_timestamp())
   AND NOT EXISTS (SELECT FROM {lease}
                   WHERE queue_id = {queue_id} AND vt <= statement_timestamp())
   AND NOT EXISTS (SELECT FROM {deferred}
                   WHERE queue_id = {queue_id} AND state = 'RETRYABLE')
