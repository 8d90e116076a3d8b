coalesce(
           (%(errors)s::text[])[array_position(%(ids)s::bigint[], gone.id)],
           -- No deliveries left: the message's last error is the reason.
           'gave up after ' || gone.read_ct::text || ' deliveries; '
               || coalesce('the last error: ' || gone.error, 'none of them reported an outcome'))
