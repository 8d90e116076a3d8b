-- Count the members of these batches that have ended, and take them out of the parts. The caller has locked the
-- batches, in a statement before this one, so this snapshot is later than the last count. Members end about in
-- their order. So a count looks at the next parts behind b.passed, and moves that behind the last one in which
-- something has ended, and at what the parts before it have left. It stops after about MOST members in each. P1, P2.
WITH looked AS MATERIALIZED (
    SELECT b.id AS batch_id, p.at, p.first, p.ids, p.is_next
    FROM unnest(%(batches)s::bigint[]) n (id)
    CROSS JOIN LATERAL (SELECT * FROM pgqueue_batch WHERE id = n.id LIMIT 1) b
    CROSS JOIN LATERAL (
        SELECT q.*, sum(jsonb_array_length(q.ids)) OVER (PARTITION BY q.is_next ORDER BY q.first)
                    - jsonb_array_length(q.ids) AS ahead
        FROM ((SELECT ctid AS at, first, ids, false AS is_next FROM pgqueue_batch_part
               WHERE batch_id = b.id AND first < b.passed ORDER BY first LIMIT (SELECT %(most)s::bigint))
              UNION ALL
              (SELECT ctid, first, ids, true FROM pgqueue_batch_part
               WHERE batch_id = b.id AND first >= b.passed ORDER BY first LIMIT (SELECT %(most)s::bigint / 100 + 1))
             ) q) p
    WHERE p.ahead < %(most)s::bigint
),
member AS MATERIALIZED (
    SELECT l.batch_id, l.at, l.first, l.is_next, m.place, m.id,
           coalesce((SELECT state FROM {archive} WHERE id = m.id LIMIT 1),
                    CASE WHEN (SELECT true FROM {message} WHERE id = m.id LIMIT 1) THEN NULL
                         WHEN (SELECT true FROM {dead_message} WHERE id = m.id LIMIT 1) THEN 'DEAD_LETTERED'
                         ELSE 'DELETED' END) AS outcome
    FROM looked l CROSS JOIN LATERAL (
        SELECT id::bigint, place FROM jsonb_array_elements_text(l.ids) WITH ORDINALITY e (id, place)) m
),
part AS MATERIALIZED (
    SELECT at, count(outcome) AS ended, jsonb_agg(id ORDER BY place) FILTER (WHERE outcome IS NULL) AS ids
    FROM member GROUP BY at
),
empty AS (
    DELETE FROM pgqueue_batch_part WHERE ctid = ANY(ARRAY(SELECT at FROM part WHERE ids IS NULL))
),
smaller AS (
    UPDATE pgqueue_batch_part p SET ids = part.ids FROM part
    WHERE p.ctid = ANY(ARRAY(SELECT at FROM part WHERE ended > 0 AND ids IS NOT NULL)) AND part.at = p.ctid
),
counted AS (
    SELECT batch_id, greatest(count(*) FILTER (WHERE is_next), count(*) FILTER (WHERE NOT is_next)) AS looked,
           coalesce(max(first + 1) FILTER (WHERE is_next AND outcome IS NOT NULL), 0) AS passed{sums}
    FROM member GROUP BY batch_id HAVING count(outcome) > 0
)
UPDATE pgqueue_batch b SET passed = greatest(b.passed, c.passed), {added}
FROM counted c WHERE b.id = ANY(ARRAY(SELECT batch_id FROM counted)) AND b.id = c.batch_id
RETURNING b.id, c.looked
