 AND pgqueue_may_start({queue_id}, r.group_key, r.id)
