-- Set the timeout of these deliveries in their batch leases. If a lease has others too, they move to a
-- lease of their own: each lease's key is its lowest id or that of its first messages. Fenced.
WITH {subscriptions/held},
split AS (
    INSERT INTO pgqueue_lease (head, tail, vt, read_at, queue_id, process_id, priority, ids, enqueued_ats)
    SELECT p.ids[1], p.ids[cardinality(p.ids)],
           CASE WHEN p.is_asked THEN coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
                ELSE h.vt END, h.read_at, {queue_id}, h.process_id, h.priority, p.ids, p.enqueued_ats
    FROM held h JOIN parts p ON p.place = h.place
    WHERE (SELECT count(*) FROM parts o WHERE o.place = h.place) = 2
      AND p.is_asked <> (h.head = ANY(h.asked))
),
kept AS (
    UPDATE pgqueue_lease l
    SET (ids, enqueued_ats, vt) = (
        SELECT p.ids, p.enqueued_ats,
               CASE WHEN p.is_asked
                    THEN coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)
                    ELSE l.vt END
        FROM parts p JOIN held h ON h.place = p.place
        WHERE p.place = l.ctid
        ORDER BY p.is_asked = (h.head = ANY(h.asked)) DESC LIMIT 1)
    WHERE ctid = ANY(ARRAY(SELECT place FROM parts))
)
SELECT id FROM (SELECT unnest(ids) AS id FROM parts WHERE is_asked) done
WHERE {leases/unflushed}
