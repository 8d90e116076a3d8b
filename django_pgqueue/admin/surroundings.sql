-- What is around a message in the queue: the head of its FIFO group, the nearest waiting messages of the
-- group before and behind it, how many wait before it (up to a limit), the error of its last attempt,
-- and whether a consumer of its queue is alive.
SELECT (SELECT head FROM pgqueue_group WHERE queue_id = %(queue_id)s AND group_key = %(group)s),
       ARRAY(SELECT id FROM pgqueue_waiting
             WHERE queue_id = %(queue_id)s AND group_key = %(group)s AND id < %(id)s
             ORDER BY id DESC LIMIT %(qty)s),
       ARRAY(SELECT id FROM pgqueue_waiting
             WHERE queue_id = %(queue_id)s AND group_key = %(group)s AND id > %(id)s
             ORDER BY id LIMIT %(qty)s + 1),
       (SELECT count(*) FROM (
            SELECT FROM pgqueue_waiting
            WHERE queue_id = %(queue_id)s AND group_key = %(group)s AND id < %(id)s
            ORDER BY id LIMIT %(most)s) AS before),
       (SELECT error FROM pgqueue_deferred WHERE id = %(id)s AND queue_id + 0 = %(queue_id)s),
       EXISTS (SELECT FROM pgqueue_process
               WHERE gone_at IS NULL AND NOT stopping AND queues @> to_jsonb(%(queue)s::text)
                 AND heartbeat_at >= statement_timestamp() - %(dead_after)s * interval '1 second')
