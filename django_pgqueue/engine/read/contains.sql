(%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = c.id AND m.body @> %(conditional)s::jsonb))
