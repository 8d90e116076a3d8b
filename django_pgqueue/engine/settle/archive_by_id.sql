-- Complete or cancel messages by id, in any place, without a fence: a tool for operators. If
-- in_flight is false, skips messages in flight.
WITH {settle/gone}
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, error)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts, %(state)s,
       %(reason)s::text
FROM gone
RETURNING id
