-- Insert rechecks for the groups of these retried messages: unless a group is FIFO, its next
-- message may take the slot of a delayed one.
INSERT INTO pgqueue_recheck (id, queue_id, group_key)
SELECT nextval('pgqueue_message_id_seq'), queue_id, group_key FROM pgqueue_deferred
WHERE {settle/chosen}
  AND group_key IS NOT NULL
RETURNING id
