-- Lock the signal of a key until this transaction ends, and return whether it was sent, and its value. If another
-- transaction is sending it, wait for that one. The row of a signal that was not sent is kept for the wait.
INSERT INTO pgqueue_signal (key, keep_until)
VALUES (%(key)s::text, statement_timestamp() + %(timeout)s::interval + interval '1 day')
ON CONFLICT (key) DO UPDATE SET
    at = excluded.at,
    sent_at = CASE WHEN pgqueue_signal.keep_until > excluded.at THEN pgqueue_signal.sent_at END,
    keep_until = CASE WHEN pgqueue_signal.sent_at IS NOT NULL AND pgqueue_signal.keep_until > excluded.at
        THEN pgqueue_signal.keep_until ELSE greatest(pgqueue_signal.keep_until, excluded.keep_until) END
RETURNING sent_at IS NOT NULL, value::text
