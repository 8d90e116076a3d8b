-- Batches of messages (docs/batches.md).

-- A batch is updated at each count: leave space for its next version beside it.
ALTER TABLE {schema}.pgqueue_batch SET (fillfactor = 70, autovacuum_vacuum_threshold = 1000);
ALTER TABLE {schema}.pgqueue_batch_part SET (autovacuum_vacuum_threshold = 1000);

ALTER TABLE {schema}.pgqueue_batch ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_batch_part ENABLE ROW LEVEL SECURITY;

CREATE POLICY pgqueue_batch_of_queue ON {schema}.pgqueue_batch FOR SELECT
    USING ({schema}.pgqueue_may(queue_id, 'SELECT') OR {schema}.pgqueue_may(queue_id, 'INSERT'));

-- A consumer sends the callback with the consumer's rights. So a role may store only a callback that it could send
-- itself. No role may change a callback: grants.py gives UPDATE on other columns. A cancelled batch has a consumer
-- cancel its members, which a sender may not do.
CREATE POLICY pgqueue_batch_begun ON {schema}.pgqueue_batch FOR INSERT
    WITH CHECK ({schema}.pgqueue_may(queue_id, 'INSERT') AND cancelled_at IS NULL
        AND (then_queue = '' OR EXISTS (
            SELECT FROM {schema}.pgqueue_queue q
            WHERE lower(q.name) = lower(then_queue) AND {schema}.pgqueue_may(q.id, 'INSERT'))));

CREATE POLICY pgqueue_batch_changed ON {schema}.pgqueue_batch FOR UPDATE
    USING ({schema}.pgqueue_may(queue_id, 'INSERT'));

CREATE POLICY pgqueue_batch_deleted ON {schema}.pgqueue_batch FOR DELETE
    USING ({schema}.pgqueue_may(queue_id, 'DELETE'));

-- The first permits the parts of batches that the role sees: the policy above applies in the subquery.
CREATE POLICY pgqueue_batch_part_of_queue ON {schema}.pgqueue_batch_part FOR SELECT
    USING (EXISTS (SELECT FROM {schema}.pgqueue_batch b WHERE b.id = batch_id));
CREATE POLICY pgqueue_batch_part_changed ON {schema}.pgqueue_batch_part
    USING (EXISTS (SELECT FROM {schema}.pgqueue_batch b
                   WHERE b.id = batch_id AND {schema}.pgqueue_may(b.queue_id, 'INSERT')));
