-- Whether a partition has a message that is not archived. Its ids say where to look: no index of
-- the live messages has their times, and few of the ids of an old partition are left among them.
WITH ids AS MATERIALIZED (
    SELECT min(id) AS first, max(id) AS last FROM {message}
)
SELECT EXISTS (
    SELECT FROM pgqueue_deferred
    WHERE id BETWEEN (SELECT first FROM ids) AND (SELECT last FROM ids)
      AND queue_id + 0 = {queue_id}
      AND enqueued_at >= coalesce(%(start)s::timestamptz, '-infinity') AND enqueued_at < %(end)s
) OR EXISTS (
    SELECT FROM pgqueue_lease l CROSS JOIN LATERAL unnest(l.enqueued_ats) AS m (enqueued_at)
    WHERE int8range(l.head, l.tail, '[]')
          && int8range((SELECT first FROM ids), (SELECT last FROM ids), '[]')
      AND l.queue_id + 0 = {queue_id}
      AND m.enqueued_at >= coalesce(%(start)s::timestamptz, '-infinity') AND m.enqueued_at < %(end)s
) OR EXISTS (
    SELECT FROM generate_series(-100, 100) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT FROM pgqueue_ready r
        WHERE r.queue_id = {queue_id} AND -r.priority = -p.priority::smallint
          AND r.id BETWEEN (SELECT first FROM ids) AND (SELECT last FROM ids)
          AND r.enqueued_at >= coalesce(%(start)s::timestamptz, '-infinity')
          AND r.enqueued_at < %(end)s
        LIMIT 1) r
) OR EXISTS (
    SELECT FROM pgqueue_waiting
    WHERE queue_id = {queue_id}
      AND id BETWEEN (SELECT first FROM ids) AND (SELECT last FROM ids)
      AND enqueued_at >= coalesce(%(start)s::timestamptz, '-infinity') AND enqueued_at < %(end)s
)
