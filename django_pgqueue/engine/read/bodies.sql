-- Included in other statements: looks up the bodies of the messages t. P5.
CROSS JOIN LATERAL (
    SELECT body, headers, scheduled_at, expires_at FROM {message} m
    WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at OFFSET 0) m
