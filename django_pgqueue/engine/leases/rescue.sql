-- Make the leased messages of a dead consumer process readable at once. Their deliveries count: one
-- of the messages may have killed the process.
WITH each AS (
    UPDATE pgqueue_deferred
    SET vt = statement_timestamp(), process_id = NULL
    WHERE queue_id = {queue_id} AND vt > statement_timestamp() AND process_id = %(process_id)s
    RETURNING id
),
batches AS (
    UPDATE pgqueue_lease
    SET vt = statement_timestamp(), process_id = NULL
    WHERE queue_id = {queue_id} AND vt > statement_timestamp() AND process_id = %(process_id)s
    RETURNING ids
)
SELECT (SELECT count(*) FROM each) + (SELECT coalesce(sum(cardinality(ids)), 0) FROM batches)
WHERE {leases/unflushed}
