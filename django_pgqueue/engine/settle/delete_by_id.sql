-- Delete messages by id, in any place, without a fence. If in_flight is false, skips messages in
-- flight. Archived messages stay.
WITH {settle/gone}
DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
RETURNING id
