-- Seconds until the next deferred message is due; no row when none waits.
SELECT extract(epoch FROM vt - statement_timestamp())::float
FROM {deferred}
WHERE queue_id = {queue_id}
ORDER BY vt
LIMIT 1
