coalesce(
           (%(errors)s::text[])[array_position(%(ids)s::bigint[], gone.id)],
           -- The deliveries have run out: the last attempt that ended with an error tells why.
           'gave up after ' || gone.read_ct::text || ' deliveries; '
               || coalesce('the last error: ' || gone.error, 'none of them reported an outcome'))
