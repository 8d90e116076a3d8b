-- Delete all but the latest attempts of each message, in each queue: a subscription's attempts are apart
-- from its source's.
DELETE FROM pgqueue_attempt WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY message_id, queue_id ORDER BY id DESC) AS place
        FROM pgqueue_attempt WHERE message_id = ANY(%(ids)s::bigint[])) numbered
    WHERE place > %(kept)s::integer)
RETURNING id
