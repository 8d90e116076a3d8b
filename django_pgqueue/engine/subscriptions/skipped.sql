-- Part that other statements include: whether a subscription skips the source's message m. It skips what
-- expired, was cancelled or replaced, and what came back to the source from its dead-letter queue.
m.{places/expired} IS TRUE
       OR {subscriptions/came_back}
       OR (SELECT true FROM {source_archive} a
           WHERE a.state IN ('CANCELLED', 'REPLACED') ORDER BY a.id LIMIT 1) IS TRUE
          AND {subscriptions/withdrawn} IS TRUE
