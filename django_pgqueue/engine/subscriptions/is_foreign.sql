-- A row if adopt.sql has something to do: messages, or positions, that name transactions of another system.
-- Only then does a role need the right to change the source's messages.
SELECT true
WHERE EXISTS (
    SELECT FROM {source_message}
    WHERE enqueued_xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
      AND enqueued_xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::text::bigint
) OR EXISTS (
    SELECT FROM pgqueue_cursor c JOIN pgqueue_queue q ON q.id = c.queue_id
    WHERE q.source_id = {source_id}
      AND c.system <> (SELECT system_identifier FROM pg_control_system()))
