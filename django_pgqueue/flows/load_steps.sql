-- Whether this delivery still holds its message, and the steps that are stored, a row each; one row without a
-- step if there are none. Fenced.
SELECT h.held, s.name, s.value::text
FROM (SELECT EXISTS (SELECT FROM pgqueue_deferred
                     WHERE {settle/fence} AND state = 'PROCESSING') AS held) h
LEFT JOIN pgqueue_step s ON s.queue_id = {queue_id} AND s.message_id = %(id)s::bigint
