CROSS JOIN LATERAL (
    SELECT body, headers FROM {message} m
    WHERE m.id = t.id AND m.enqueued_at = t.enqueued_at OFFSET 0) m
