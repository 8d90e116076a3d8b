-- Part that other statements include: whether the source's message m came back to it from its dead-letter
-- queue, which does not make it a new message for subscriptions.
(m.headers #>> '{{x-dead-letter,source}}'
    = (SELECT name::text FROM pgqueue_queue WHERE id = {source_id})) IS TRUE
