-- Deletes slots of groups that have no head, and whose rate no longer delays the next head.
WITH swept AS (
    DELETE FROM pgqueue_group WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM pgqueue_group
        WHERE queue_id = {queue_id} AND group_key > '' AND head IS NULL
          AND free_at <= statement_timestamp()
        ORDER BY group_key LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM swept
