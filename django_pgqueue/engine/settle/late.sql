-- Whether the message d has expired.
CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.id = d.id AND m.enqueued_at = d.enqueued_at AND m.{places/expired} OFFSET 0) m
