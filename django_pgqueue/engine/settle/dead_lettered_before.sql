-- Deliveries whose message an operation before has dead-lettered: its answer was lost on its way. P5.
SELECT r.id
FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
    AS r (id, read_ct, read_at)
CROSS JOIN LATERAL (
    SELECT FROM {dead_message} m
    WHERE m.id = r.id
      AND m.headers #>> '{{x-dead-letter,receipt}}' = concat_ws(':', r.id, r.read_ct, r.read_at)
    OFFSET 0) done
