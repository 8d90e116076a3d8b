-- Part that other statements include: whether the body of the message d contains the condition.
(%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
