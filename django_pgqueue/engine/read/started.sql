 AND (SELECT pgqueue_started({queue_id}, array_agg(t.id), array_agg(t.group_key))
      FROM taken t {read/bodies} WHERE ({read/note}) IS NULL)
