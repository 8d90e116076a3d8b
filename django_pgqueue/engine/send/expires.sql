coalesce(%(expires_at)s::timestamptz, statement_timestamp() + %(expires_after)s::interval),
