-- Delete the row of a signal that was not sent, if no message waits for it. The caller holds its lock.
DELETE FROM pgqueue_signal s
WHERE s.key = %(key)s::text AND s.sent_at IS NULL
  AND NOT EXISTS (SELECT FROM pgqueue_wait w WHERE w.key = s.key)
RETURNING true
