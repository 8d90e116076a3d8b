-- What a read would find, without taking it. Held rows are shown too: nothing is locked.
(
    SELECT d.id, m.body, m.headers, d.enqueued_at, d.priority, d.group_key,
           d.read_ct, d.attempts, d.vt, d.first_read_at
    FROM {deferred} d
    JOIN {message} m ON m.id = d.id AND m.enqueued_at = d.enqueued_at
    WHERE d.queue_id = {queue_id} AND d.vt <= statement_timestamp()
      AND (%(conditional)s::jsonb IS NULL OR m.body @> %(conditional)s::jsonb)
    ORDER BY d.vt
    LIMIT %(qty)s
)
UNION ALL
(
    SELECT r.id, m.body, m.headers, r.enqueued_at, r.priority, r.group_key,
           0, 0, r.enqueued_at, NULL
    FROM {ready} r
    JOIN {message} m ON m.id = r.id AND m.enqueued_at = r.enqueued_at
    WHERE r.queue_id = {queue_id}
      AND (%(conditional)s::jsonb IS NULL OR m.body @> %(conditional)s::jsonb)
    ORDER BY r.priority DESC, r.id
    LIMIT %(qty)s
)
LIMIT %(qty)s
