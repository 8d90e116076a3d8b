-- archive.sql for messages whose handler's result is kept: one JSON object of results, by id.
WITH gone AS (
    DELETE FROM {deferred}
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND queue_id + 0 = {queue_id}
      AND {fence}
    RETURNING id, enqueued_at, first_read_at, last_read_at, read_ct, attempts
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, queue_id, read_ct,
                       attempts, state, result)
SELECT id, enqueued_at, first_read_at, last_read_at, {queue_id}, read_ct, attempts + %(ran)s,
       'COMPLETED', nullif((%(results)s::jsonb) -> id::text, 'null')
FROM gone
RETURNING id
