-- Part that other statements include: the batch leases of these deliveries, locked, each with the ids of
-- those that it still holds. Leases of one read do not share messages. P3, P5.
asked AS MATERIALIZED (
    SELECT l.place, array_agg(given.id) AS ids
    FROM unnest(%(ids)s::bigint[], %(read_ats)s::bigint[]) AS given (id, read_at)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM pgqueue_lease
        WHERE int8range(head, tail, '[]') @> given.id AND queue_id + 0 = {queue_id}
          AND read_at = timestamptz 'epoch' + given.read_at::float8 * interval '1 microsecond'
          AND given.id = ANY(ids) OFFSET 0) l
    GROUP BY l.place
),
held AS MATERIALIZED (
    SELECT l.ctid AS place, l.ids, l.enqueued_ats, l.head, l.read_at, l.process_id, l.priority, l.vt,
           (SELECT a.ids FROM asked a WHERE a.place = l.ctid) AS asked
    FROM pgqueue_lease l
    WHERE l.ctid = ANY(ARRAY(SELECT place FROM asked))
    ORDER BY l.head
    FOR UPDATE
),
parts AS MATERIALIZED (
    SELECT h.place, array_agg(m.id ORDER BY m.id) AS ids,
           array_agg(m.enqueued_at ORDER BY m.id) AS enqueued_ats, m.id = ANY(h.asked) AS is_asked
    FROM held h CROSS JOIN LATERAL unnest(h.ids, h.enqueued_ats) AS m (id, enqueued_at)
    WHERE h.asked IS NOT NULL
    GROUP BY h.place, is_asked
)
