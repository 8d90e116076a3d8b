-- Insert the errors of failed attempts.
INSERT INTO pgqueue_attempt (message_id, queue_id, attempt, process_id, error_class, message,
                             traceback)
SELECT given.id, {queue_id}, given.attempt, %(process_id)s::integer, given.error_class,
       given.message, given.traceback
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(error_classes)s::text[],
            %(messages)s::text[], %(tracebacks)s::text[])
     AS given (id, attempt, error_class, message, traceback)
RETURNING message_id
