-- In place of read/bodies.sql: looks up the rows of messages that may be in a lease, so that the source has
-- them. P5.
CROSS JOIN LATERAL (
    (SELECT * FROM {message} m WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at)
    UNION ALL
    (SELECT * FROM {source_message} m WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at)
    LIMIT 1) m
