coalesce(
           (%(errors)s::text[])[array_position(%(ids)s::bigint[], gone.id)],
           -- No error is given for a message without deliveries left: use its stored error.
           'gave up after ' || gone.read_ct::text || ' deliveries; '
               || coalesce('the last error: ' || gone.error, 'none of them reported an outcome'))
