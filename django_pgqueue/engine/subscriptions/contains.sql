-- In place of read/contains.sql, for messages that may be in a lease.
(%(conditional)s::jsonb IS NULL OR EXISTS (
          SELECT FROM {message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb)
      OR EXISTS (
          SELECT FROM {source_message} m WHERE m.id = d.id AND m.body @> %(conditional)s::jsonb))
