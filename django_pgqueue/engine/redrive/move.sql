-- Move messages that are not in flight to another queue, with their ids and headers. The trigger on
-- the other queue's partition makes them readable. P3.
WITH {settle/gone},
moved AS (
    DELETE FROM {message} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    RETURNING id, unique_key, headers, {kept_columns}
)
INSERT INTO {target_message} (id, queue_id, unique_key, headers, {kept_columns})
SELECT id, {target_queue_id}, unique_key, headers, {kept_columns} FROM moved
RETURNING id
