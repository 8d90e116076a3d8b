-- Whether this delivery still holds its message, and the steps that are stored, a row each; one row without a
-- step if there are none. With a name, only that step. Fenced.
SELECT h.held, s.name, s.value::text
FROM (SELECT EXISTS (SELECT FROM pgqueue_deferred
                     WHERE {settle/fence} AND state = 'PROCESSING') AS held) h
LEFT JOIN pgqueue_step s ON s.queue_id = {queue_id} AND s.message_id = %(id)s::bigint
                        AND (s.name = %(name)s::text OR %(name)s::text IS NULL)
