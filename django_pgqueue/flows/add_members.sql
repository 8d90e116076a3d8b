-- Add members to a batch that is not sealed, in parts. Returns how many members it has now.
WITH batch AS (
    UPDATE pgqueue_batch SET members = members + cardinality(%(ids)s::bigint[])
    WHERE id = %(batch)s::bigint AND sealed_at IS NULL
    RETURNING members
),
parts AS (
    INSERT INTO pgqueue_batch_part (batch_id, first, ids)
    SELECT %(batch)s::bigint, batch.members - cardinality(%(ids)s::bigint[]) + min(m.place) - 1,
           jsonb_agg(m.id ORDER BY m.place)
    FROM batch CROSS JOIN unnest(%(ids)s::bigint[]) WITH ORDINALITY m (id, place)
    GROUP BY batch.members, (m.place - 1) / %(part)s::bigint
)
SELECT members FROM batch
