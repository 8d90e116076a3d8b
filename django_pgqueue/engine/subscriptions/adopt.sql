-- Messages that were restored from another system name its transactions. Those that this system has not
-- reached yet would look unsent: they get the first transaction's id. Other subscriptions that have not
-- gone on yet must not take them for passed: see resume.sql.
WITH adopted AS (
    UPDATE {source_message} SET enqueued_xid = 1
    WHERE enqueued_xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
      AND enqueued_xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::text::bigint
    RETURNING id
),
foreign_ones AS (
    DELETE FROM pgqueue_cursor
    WHERE queue_id IN (SELECT id FROM pgqueue_queue WHERE source_id = {source_id})
      AND system <> (SELECT system_identifier FROM pg_control_system())
    RETURNING pgqueue_cursor AS place
),
kept AS (
    INSERT INTO pgqueue_cursor (queue_id, number, last_id, lost, told, system, since, until, after_xid, after_id)
    SELECT (place).queue_id, (place).number + 1, least((place).last_id, (
               SELECT min(m.id) - 1 FROM {source_message} m
               WHERE m.id <= (place).last_id AND NOT pgqueue_passed(place, m.enqueued_xid, m.id))),
           (place).lost, (place).told, (place).system, (place).since, (place).until,
           (place).after_xid, (place).after_id
    FROM foreign_ones
)
SELECT count(*) FROM adopted
