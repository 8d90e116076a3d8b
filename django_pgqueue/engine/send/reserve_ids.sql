-- Ids for rows that COPY will bring, since COPY returns none. The moment is one for all.
SELECT nextval('pgqueue_message_id_seq'),
       coalesce(%(at)s::timestamptz, statement_timestamp() + %(after)s::interval)::text
FROM generate_series(1, %(count)s)
