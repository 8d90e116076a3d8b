-- Announce that the caller waits for messages of a subscription: pgqueue_reader_asleep. Commits without
-- waiting for the disk.
SELECT due, doubt
FROM pgqueue_reader_asleep({queue_id}, {source_id}, %(heard)s::integer[], %(doubt)s)
WHERE {leases/unflushed}
