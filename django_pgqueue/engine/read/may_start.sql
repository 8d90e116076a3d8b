 AND pgqueue_may_start({queue_id}, d.group_key, d.id)
