-- Statements of planning.py, a part each.

-- {planning/leaves}
SELECT q.id, t.relid::regclass::text, pg_relation_filenode(t.relid),
       pg_relation_size(t.relid) / %s, greatest(c.reltuples, 0),
       s.histogram_bounds::text::bigint[]
FROM unnest(%s::integer[]) WITH ORDINALITY AS q (id, place),
     pg_partition_tree(to_regclass('pgqueue_archive_q' || q.id)) t
     JOIN pg_class c ON c.oid = t.relid
     LEFT JOIN pg_stats s
         ON s.schemaname = c.relnamespace::regnamespace::text AND s.tablename = c.relname
         AND s.attname = 'id' AND s.correlation > %s
WHERE t.isleaf AND pg_relation_size(t.relid) > 0
ORDER BY q.place, t.relid::regclass::text

-- {planning/bytes_of_a_message}
SELECT (sum(pg_table_size(t.relid)) / nullif(sum(greatest(c.reltuples, 0)), 0))::float8
FROM unnest(%s::integer[]) AS q (id),
     pg_partition_tree(to_regclass('pgqueue_message_q' || q.id)) t
     JOIN pg_class c ON c.oid = t.relid
WHERE t.isleaf

-- {planning/cuts}
SELECT archive_xid, id FROM (
    SELECT a.archive_xid, a.id, row_number() OVER (ORDER BY a.archive_xid, a.id) AS place
    FROM pgqueue_archive a WHERE {condition}
) numbered
WHERE place % {every} = 0 ORDER BY place
