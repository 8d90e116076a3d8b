-- Complete some of the messages of batch leases. The rest stay leased. A lease does not match if it
-- was unfolded, or if its messages were read again: archive.sql then looks up each message.
WITH held AS MATERIALIZED (
    SELECT l.place, l.head, l.ids, l.enqueued_ats, l.read_at, g.ids::bigint[] AS done
    FROM unnest(%(heads)s::bigint[], %(read_ats)s::bigint[], %(members)s::text[])
        AS g (head, read_at, ids)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, head, ids, enqueued_ats, read_at FROM pgqueue_lease
        WHERE head = g.head AND queue_id + 0 = {queue_id}
          AND read_at = timestamptz 'epoch' + g.read_at::float8 * interval '1 microsecond'
        FOR UPDATE) l
),
rest AS MATERIALIZED (
    SELECT place, array_agg(m.id ORDER BY m.id) AS ids,
           array_agg(m.enqueued_at ORDER BY m.id) AS enqueued_ats
    FROM held CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    WHERE m.id <> ALL(done)
    GROUP BY place
),
kept AS (
    UPDATE pgqueue_lease
    SET ids = (SELECT r.ids FROM rest r WHERE r.place = pgqueue_lease.ctid),
        enqueued_ats = (SELECT r.enqueued_ats FROM rest r WHERE r.place = pgqueue_lease.ctid)
    WHERE ctid = ANY(ARRAY(SELECT place FROM rest))
    RETURNING head
),
emptied AS (
    DELETE FROM pgqueue_lease WHERE ctid = ANY(ARRAY(
        SELECT place FROM held WHERE place <> ALL(ARRAY(SELECT place FROM rest))))
    RETURNING head
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, result)
SELECT m.id, m.enqueued_at, h.read_at, h.read_at, {queue_id}, 1, %(ran)s, 'COMPLETED',
       %(results)s::jsonb -> m.id::text
FROM held h CROSS JOIN LATERAL unnest(h.ids, h.enqueued_ats) AS m (id, enqueued_at)
WHERE h.head = ANY(ARRAY(SELECT head FROM kept UNION ALL SELECT head FROM emptied))
  AND m.id = ANY(h.done)
RETURNING id
