-- Have the next read look at the groups of these messages: they have been put off, and hold no slot.
INSERT INTO pgqueue_recheck (id, queue_id, group_key)
SELECT nextval('pgqueue_message_id_seq'), queue_id, group_key FROM pgqueue_deferred
WHERE {settle/chosen}
  AND group_key IS NOT NULL
RETURNING id
