-- Delete messages of the queue in any state, without a fence. Archived messages stay.
WITH {settle/gone}
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
RETURNING id
