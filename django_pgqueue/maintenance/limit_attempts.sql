-- Deletes a batch of attempts, beyond the newest ones of a queue. Skips these by index.
DELETE FROM pgqueue_attempt WHERE id = ANY(ARRAY(
    SELECT id FROM pgqueue_attempt WHERE queue_id = {queue_id}
    ORDER BY at DESC, id DESC OFFSET %(kept)s::integer LIMIT %(batch)s))
RETURNING id
