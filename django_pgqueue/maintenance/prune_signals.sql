-- Delete signals that are kept no longer, and rows of unsent ones for which no message waits any more.
WITH old AS (
    SELECT key FROM pgqueue_signal s
    WHERE keep_until <= statement_timestamp()
      AND (sent_at IS NOT NULL OR NOT EXISTS (SELECT FROM pgqueue_wait w WHERE w.key = s.key))
    ORDER BY keep_until LIMIT %(batch)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_signal WHERE key IN (SELECT key FROM old) RETURNING key
