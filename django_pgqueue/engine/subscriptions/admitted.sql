 AND (SELECT pgqueue_admitted({queue_id}, (
          SELECT array_agg(id) FROM taken
          WHERE (read_scheduled_at > statement_timestamp()) IS NOT TRUE),
          a.next_at, a.spacing, a.is_reused)
      FROM admit a)
