 AND (SELECT pgqueue_admitted({queue_id}, (
          SELECT array_agg(t.id) FROM taken t {read/bodies} WHERE ({read/note}) IS NULL),
          a.next_at, a.spacing, a.is_reused)
      FROM admit a)
