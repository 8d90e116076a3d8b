-- The moment at which messages that are sent by COPY expire.
SELECT coalesce(%(expires_at)s::timestamptz, statement_timestamp() + %(expires_after)s::interval)::text
