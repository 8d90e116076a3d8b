-- Insert rechecks for the groups of these retried messages: the next message of a group may take the
-- slot while the retried one is delayed, unless the group is FIFO.
INSERT INTO pgqueue_recheck (id, queue_id, group_key)
SELECT pgqueue_recheck_id(), queue_id, group_key FROM pgqueue_deferred
WHERE {settle/chosen}
  AND group_key IS NOT NULL
RETURNING id
