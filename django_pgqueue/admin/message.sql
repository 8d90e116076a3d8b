-- Details of a message's page, a column each: the head of its FIFO group; the nearest waiting messages of the
-- group before it; those after it; how many wait before it, up to a limit; the error of its last attempt;
-- whether its queue has a live consumer; whether its queue is a dead-letter queue; the kind of its failure;
-- the id of a dead letter's source queue; the names of the processes that held it, by id.
SELECT (SELECT head FROM pgqueue_group
        WHERE queue_id = %(queue_id)s AND group_key = %(group)s AND head IS NOT NULL
        ORDER BY slot LIMIT 1),
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
               WHERE gone_at IS NULL AND NOT stopping AND NOT quiet
                 AND queues @> to_jsonb(%(queue)s::text)
                 AND heartbeat_at >= statement_timestamp() - %(dead_after)s * interval '1 second'),
       EXISTS (SELECT FROM pgqueue_queue WHERE dead_letter_queue_id = %(queue_id)s),
       coalesce((SELECT failure FROM {archive} WHERE id = %(id)s AND state = 'FAILED' LIMIT 1),
                (SELECT failure FROM {message} WHERE id = %(id)s LIMIT 1)),
       (SELECT id FROM pgqueue_queue WHERE name = %(source)s),
       (SELECT coalesce(jsonb_object_agg(id, host || ':' || pid), '{{}}')::text FROM pgqueue_process
        WHERE id IN (SELECT process_id FROM pgqueue_attempt WHERE message_id = %(id)s
                     UNION ALL SELECT %(holder)s::int))
