-- The lakes that hold a queue's retention: the transaction up to which each has the archived
-- messages, and whether it is one of this server. After a restore on another server it is not.
SELECT path, exported_below,
       system = (SELECT system_identifier::text FROM pg_control_system()) AS is_ours
FROM pgqueue_lake
WHERE holds_retention
  AND (queues = '[]' OR EXISTS (
      SELECT FROM jsonb_array_elements_text(queues) AS q (name)
      WHERE lower(q.name) = lower(%(name)s)))
ORDER BY path
