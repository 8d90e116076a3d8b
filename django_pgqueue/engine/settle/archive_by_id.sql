-- Complete or cancel messages in any state, without a fence: an operator's tool.
WITH {settle/gone}
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, error)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts, %(state)s,
       %(reason)s::text
FROM gone
RETURNING id
