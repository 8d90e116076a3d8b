((id, read_ct, last_read_at) IN (
        SELECT r.id, r.read_ct, timestamptz 'epoch' + r.read_at * interval '1 microsecond'
        FROM unnest(%(ids)s::bigint[], %(read_cts)s::integer[], %(read_ats)s::bigint[])
            AS r (id, read_ct, read_at))) IS TRUE
      -- A follower's delivery is good for as long as that of its group's head.
      AND (group_key IS NULL OR EXISTS (
          SELECT FROM {group} g
          WHERE g.queue_id = {queue_id} AND g.group_key = {deferred}.group_key
            AND (g.head = {deferred}.id OR EXISTS (
                SELECT FROM {deferred} h
                WHERE h.id = g.head AND h.queue_id + 0 = {queue_id}
                  AND h.last_read_at = {deferred}.last_read_at))))
