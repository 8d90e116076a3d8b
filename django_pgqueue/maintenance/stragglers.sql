-- Whether a partition has a message that is not archived. The live tables have no index for
-- enqueued_at, so they are searched by id: few live messages are in the partition's range of ids.
WITH part AS MATERIALIZED (
    SELECT min(id) AS first, max(id) AS last,
           tstzrange(%(start)s::timestamptz, %(end)s::timestamptz) AS span
    FROM {message}
)
SELECT EXISTS (
    SELECT FROM pgqueue_deferred
    WHERE id BETWEEN (SELECT first FROM part) AND (SELECT last FROM part)
      AND queue_id + 0 = {queue_id} AND enqueued_at <@ (SELECT span FROM part)
) OR EXISTS (
    SELECT FROM pgqueue_lease l CROSS JOIN LATERAL unnest(l.enqueued_ats) AS m (enqueued_at)
    WHERE int8range(l.head, l.tail, '[]')
          && int8range((SELECT first FROM part), (SELECT last FROM part), '[]')
      AND l.queue_id + 0 = {queue_id} AND m.enqueued_at <@ (SELECT span FROM part)
) OR EXISTS (
    SELECT FROM generate_series(-100, 100) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT FROM pgqueue_ready r
        WHERE r.queue_id = {queue_id} AND -r.priority = -p.priority::smallint
          AND r.turn BETWEEN (SELECT first << 20 FROM part) AND (SELECT last << 20 FROM part)
          AND r.enqueued_at <@ (SELECT span FROM part)
        LIMIT 1) r
) OR EXISTS (
    -- Heads of groups have later turns than their ids.
    SELECT FROM pgqueue_group g CROSS JOIN LATERAL (
        SELECT FROM pgqueue_ready r
        WHERE r.queue_id = {queue_id} AND -r.priority = -g.priority AND r.turn = g.turn
          AND r.id = g.head AND r.enqueued_at <@ (SELECT span FROM part)
        LIMIT 1) r
    WHERE g.queue_id = {queue_id}
      AND g.head BETWEEN (SELECT first FROM part) AND (SELECT last FROM part)
) OR EXISTS (
    SELECT FROM pgqueue_waiting
    WHERE queue_id = {queue_id}
      AND id BETWEEN (SELECT first FROM part) AND (SELECT last FROM part)
      AND enqueued_at <@ (SELECT span FROM part)
)
