-- Included in other statements: looks up the rows of the messages t. P5.
CROSS JOIN LATERAL (
    SELECT * FROM {message} m
    WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at OFFSET 0) m
