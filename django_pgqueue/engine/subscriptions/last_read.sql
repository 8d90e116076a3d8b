-- Part that other statements include: the id behind which a subscription with the position place goes on
-- after a restore. It may have passed messages with higher ids than some that committed late and were not
-- read.
least((place).last_id, (
    SELECT min(m.id) - 1 FROM {source_message} m
    WHERE m.id <= (place).last_id AND NOT pgqueue_passed(place, m.enqueued_xid, m.id)))
