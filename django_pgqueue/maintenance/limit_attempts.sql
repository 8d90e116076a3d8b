-- The newest attempts of a queue stay; of the others a batch goes.
-- In the order of an index, whose entries of the kept attempts are counted.
DELETE FROM pgqueue_attempt WHERE id = ANY(ARRAY(
    SELECT id FROM pgqueue_attempt WHERE queue_id = {queue_id}
    ORDER BY at DESC, id DESC OFFSET %(kept)s::integer LIMIT %(batch)s))
RETURNING id
