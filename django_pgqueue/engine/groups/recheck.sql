-- Have the next read look at the groups of these messages: they have been put off, and hold no slot.
INSERT INTO pgqueue_recheck (id, queue_id, group_key)
SELECT nextval('pgqueue_message_id_seq'), queue_id, group_key FROM pgqueue_deferred
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
  AND group_key IS NOT NULL
RETURNING id
