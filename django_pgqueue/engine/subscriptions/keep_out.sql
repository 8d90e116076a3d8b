-- Wait for the transactions in which messages leave the source, and keep others out until the end of this
-- one: pgqueue_message_left (ddl/subscriptions.sql).
SELECT pg_advisory_xact_lock(hashtextextended('pgqueue.source', {source_id})) IS NULL
