-- Part that other statements include: keeps only messages d that have expired.
CROSS JOIN LATERAL (
        SELECT FROM {message} m
        WHERE m.id = d.id AND m.enqueued_at = d.enqueued_at AND m.{places/expired} OFFSET 0) m
