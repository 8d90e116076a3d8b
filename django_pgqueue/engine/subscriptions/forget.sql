-- Take these deliveries out of their batch leases. Nothing remains of them: the source has the messages.
-- Fenced by the time of the delivery.
WITH {subscriptions/held},
kept AS (
    UPDATE pgqueue_lease l
    SET (ids, enqueued_ats) = (SELECT p.ids, p.enqueued_ats FROM parts p
                               WHERE p.place = l.ctid AND NOT p.is_asked)
    WHERE ctid = ANY(ARRAY(SELECT place FROM parts WHERE NOT is_asked))
),
emptied AS (
    DELETE FROM pgqueue_lease WHERE ctid = ANY(ARRAY(
        SELECT place FROM parts WHERE place <> ALL(ARRAY(SELECT place FROM parts WHERE NOT is_asked))))
)
SELECT unnest(ids) AS id FROM parts WHERE is_asked
