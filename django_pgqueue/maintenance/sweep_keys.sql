-- Deletes unique keys that no message holds. Returns how many were checked, and how many deleted.
SELECT seen, deleted FROM pgqueue_sweep_keys({queue_id}, %(batch)s)
