CASE WHEN m.{places/expired} OR (
         SELECT true FROM {source_archive} a
         WHERE a.id = m.id AND a.state IN ('CANCELLED', 'REPLACED') LIMIT 1) THEN 'expired' END
