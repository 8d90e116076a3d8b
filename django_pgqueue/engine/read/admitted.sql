 AND (SELECT pgqueue_admitted({queue_id}, coalesce(array_agg(t.id), '{{}}'))
      FROM taken t {read/bodies} WHERE ({read/note}) IS NULL)
