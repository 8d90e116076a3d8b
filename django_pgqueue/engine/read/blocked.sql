-- Part that other statements include: whether the message d may not start, since it is not a head
-- of its group, or its slot is not free yet (ddl/slots.sql).
(SELECT true FROM pgqueue_group g
             WHERE g.queue_id = {queue_id} AND g.group_key = d.group_key AND g.head = d.id
               AND (g.free_at IS NULL OR g.free_at <= statement_timestamp())
             LIMIT 1) IS NULL
