-- Announce that the caller waits for messages: pgqueue_fall_asleep. Changes nothing else, so the commit
-- does not wait for the disk.
SELECT due, doubt FROM pgqueue_fall_asleep({queue_id}, %(heard)s::integer[], %(doubt)s)
WHERE {leases/unflushed}
