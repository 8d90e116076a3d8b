-- Part that other statements include: whether one of a subscription's own messages is ready or due, or a
-- batch lease has expired. P6.
(SELECT true FROM pgqueue_ready WHERE queue_id = {queue_id} ORDER BY -priority, turn LIMIT 1)
    OR (SELECT true FROM pgqueue_deferred
        WHERE queue_id = {queue_id} AND vt <= statement_timestamp() ORDER BY vt LIMIT 1)
    OR (SELECT true FROM pgqueue_lease
        WHERE queue_id = {queue_id} AND vt <= statement_timestamp() ORDER BY vt LIMIT 1)
