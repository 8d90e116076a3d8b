-- The highest id of all messages.
SELECT last_value FROM pgqueue_message_id_seq
