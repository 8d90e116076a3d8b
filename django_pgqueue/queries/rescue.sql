-- What a dead consumer held can be read again at once. The delivery counts: it may be what the
-- consumer died of.
WITH each AS (
    UPDATE {deferred}
    SET vt = statement_timestamp(), worker = NULL
    WHERE queue_id = {queue_id} AND vt > statement_timestamp() AND worker = %(worker)s
    RETURNING id
),
batches AS (
    UPDATE {lease}
    SET vt = statement_timestamp(), worker = NULL
    WHERE queue_id = {queue_id} AND vt > statement_timestamp() AND worker = %(worker)s
    RETURNING ids
)
SELECT (SELECT count(*) FROM each) + (SELECT coalesce(sum(cardinality(ids)), 0) FROM batches)
