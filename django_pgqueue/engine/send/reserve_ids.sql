-- Reserve ids for COPY, which returns none; and the time until which the messages are delayed.
SELECT nextval('pgqueue_message_id_seq'),
       coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM generate_series(1, %(count)s)
