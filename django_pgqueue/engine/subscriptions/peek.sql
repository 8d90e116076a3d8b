-- The source's next messages behind the position, without those that a read would skip. Looks through up
-- to %(most)s messages. A row with the note 'again' is no message: others may follow. One with 'foreign':
-- the position is missing or comes from another system. P1.
WITH place AS MATERIALIZED (
    {subscriptions/place}
),
seen AS MATERIALIZED (
    SELECT m.*, p.round FROM place p CROSS JOIN LATERAL ({subscriptions/ahead}) m
    WHERE NOT p.is_foreign
    ORDER BY p.round, m.enqueued_xid, m.id
    LIMIT (SELECT {most})
),
found AS MATERIALIZED (
    SELECT m.* FROM seen m
    WHERE NOT ({subscriptions/skipped})
      AND (m.scheduled_at::timestamptz > statement_timestamp()) IS NOT TRUE
      AND (%(conditional)s::jsonb IS NULL OR m.body @> %(conditional)s::jsonb)
    ORDER BY m.round, m.enqueued_xid, m.id
    LIMIT (SELECT %(qty)s::bigint)
)
SELECT NULL::text, m.id, 0, 0, m.enqueued_at, m.priority, m.group_key, 0,
       (extract(epoch FROM m.enqueued_at) * 1000000::numeric)::bigint, NULL::bigint{read_columns}
FROM found m
UNION ALL
SELECT CASE WHEN f.is_foreign THEN 'foreign' ELSE 'again' END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL{no_columns}
FROM (SELECT coalesce(bool_or(is_foreign), true) AS is_foreign FROM place) f
WHERE f.is_foreign
   OR (SELECT count(*) FROM found) < (SELECT %(qty)s::bigint)
      AND (SELECT count(*) FROM seen) = (SELECT {most})
