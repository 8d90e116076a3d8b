-- Part that other statements include: whether the source's message m was cancelled or replaced.
(SELECT true FROM {source_archive} a
         WHERE a.id = m.id AND a.state IN ('CANCELLED', 'REPLACED') LIMIT 1)
