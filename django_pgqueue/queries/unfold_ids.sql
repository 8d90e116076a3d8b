ARRAY(
        SELECT l.head FROM unnest(%(ids)s::bigint[]) AS given (id)
        CROSS JOIN LATERAL (
            SELECT head FROM {lease}
            WHERE int8range(head, tail, '[]') @> given.id AND queue_id + 0 = {queue_id}
              AND given.id = ANY(ids) OFFSET 0) l)
