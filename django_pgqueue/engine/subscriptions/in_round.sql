-- Part that other statements include: whether the round of the position p shows the source's message m.
m.enqueued_xid < p.target_max
   AND (m.enqueued_xid < p.target_min OR pgqueue_shows(p.target, m.enqueued_xid))
