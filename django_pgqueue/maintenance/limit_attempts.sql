-- Deletes a batch of a queue's attempts. Keeps the newest, which it skips in an index.
DELETE FROM pgqueue_attempt WHERE id = ANY(ARRAY(
    SELECT id FROM pgqueue_attempt WHERE queue_id = {queue_id}
    ORDER BY at DESC, id DESC OFFSET %(kept)s::integer LIMIT %(batch)s))
RETURNING id
