-- Part that other statements include: the columns of a delivery, but for the last.
CASE WHEN t.read_scheduled_at > statement_timestamp() THEN 'early' END, t.id, 1, now.us,
       t.enqueued_at, t.priority, t.group_key, 0,
       now.us + (SELECT (extract(epoch FROM %(vt)s::interval) * 1000000::numeric)::bigint),
       now.us{read_names}
