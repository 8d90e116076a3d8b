-- The highest id that any message has.
SELECT last_value FROM pgqueue_message_id_seq
