-- Delete messages, live or archived, with all rows that refer to them. P3, P4.
WITH {settle/gone},
done AS (
    DELETE FROM {archive} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
)
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) RETURNING id
