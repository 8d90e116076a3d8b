-- Reserve ids, since COPY returns none. Also returns the time until which messages are delayed.
SELECT nextval('pgqueue_message_id_seq'),
       coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM generate_series(1, %(count)s)
