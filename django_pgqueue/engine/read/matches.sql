({any_body} OR (
          SELECT true FROM {message} m
          WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb LIMIT 1))
