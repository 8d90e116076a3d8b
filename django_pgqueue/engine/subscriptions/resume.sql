-- After a restore: the id behind which the subscription goes on. It may have passed messages with higher
-- ids than some that committed late and were not read.
SELECT least((place).last_id, (
    SELECT min(m.id) - 1 FROM {source_message} m
    WHERE m.id <= (place).last_id AND NOT pgqueue_passed(place, m.enqueued_xid, m.id)))
FROM (SELECT c AS place FROM pgqueue_cursor c WHERE queue_id = {queue_id} ORDER BY number DESC LIMIT 1) p
