{settle/chosen}
      AND ((id, read_ct, last_read_at) IN (
        SELECT unnest(%(ids)s::bigint[]), unnest(%(read_cts)s::integer[]),
               timestamptz 'epoch' + unnest(%(read_ats)s::bigint[])::float8
                                     * interval '1 microsecond')) IS TRUE
      -- A follower's receipt is valid only if its group's head was last delivered by the same read.
      -- P6.
      AND (group_key IS NULL OR (
          SELECT true FROM (
              -- Backward, since a held snapshot keeps dead versions of the row before the live one.
              SELECT g.head, g.followers FROM pgqueue_group g
              WHERE g.queue_id = {queue_id} AND g.group_key = pgqueue_deferred.group_key
                AND g.slot <= 0
              ORDER BY g.slot DESC LIMIT 1) g
          WHERE pgqueue_deferred.id = ANY(g.followers) AND g.head <> pgqueue_deferred.id
            AND pgqueue_deferred.last_read_at IS DISTINCT FROM (
              SELECT h.last_read_at FROM pgqueue_deferred h
              WHERE h.id = g.head AND h.queue_id + 0 = {queue_id}
              ORDER BY h.id LIMIT 1)
          LIMIT 1) IS NULL)
