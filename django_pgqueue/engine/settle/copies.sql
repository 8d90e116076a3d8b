-- The dead letters of a subscription that were these messages. They have other ids.
SELECT id FROM {message}
WHERE headers ? 'x-dead-letter' AND source_id = %(reader)s::integer
  AND headers #>> '{{x-dead-letter,id}}' = ANY(%(ids)s::text[])
