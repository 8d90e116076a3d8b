-- A row if adopt.sql has something to do: messages, or positions, that name transactions of another system.
-- Only then does a role need the right to change the source's messages.
SELECT true
WHERE EXISTS (
    SELECT FROM {source_message}
    WHERE {subscriptions/unreached}
) OR EXISTS (
    SELECT FROM pgqueue_cursor c JOIN pgqueue_queue q ON q.id = c.queue_id
    WHERE q.source_id = {source_id}
      AND {subscriptions/elsewhere})
