
                     OR (SELECT true FROM pgqueue_group WHERE queue_id = {queue_id}
                         ORDER BY group_key LIMIT 1)
