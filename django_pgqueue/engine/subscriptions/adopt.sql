-- Messages that were restored from another system name its transactions. Those that this system has not
-- reached yet would look unsent: they get the first transaction's id. Other subscriptions that have not
-- gone on yet must not take them for passed: see last_read.sql.
WITH adopted AS (
    UPDATE {source_message} SET enqueued_xid = 1
    WHERE {subscriptions/unreached}
    RETURNING id
),
foreign_ones AS (
    DELETE FROM pgqueue_cursor
    WHERE queue_id IN (SELECT id FROM pgqueue_queue WHERE source_id = {source_id})
      AND {subscriptions/elsewhere}
    RETURNING pgqueue_cursor AS place
),
kept AS (
    INSERT INTO pgqueue_cursor (queue_id, number, last_id, lost, told, system, since, until, after_xid, after_id)
    SELECT (place).queue_id, (place).number + 1, {subscriptions/last_read},
           (place).lost, (place).told, (place).system, (place).since, (place).until,
           (place).after_xid, (place).after_id
    FROM foreign_ones
)
SELECT count(*) FROM adopted
