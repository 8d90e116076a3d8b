-- The head of a message's FIFO group, and the waiting messages of it before and behind that message.
SELECT (SELECT head FROM {group} WHERE queue_id = {queue_id} AND group_key = %(group)s),
       ARRAY(SELECT id FROM {waiting}
             WHERE queue_id = {queue_id} AND group_key = %(group)s AND id < %(id)s
             ORDER BY id DESC LIMIT %(qty)s),
       ARRAY(SELECT id FROM {waiting}
             WHERE queue_id = {queue_id} AND group_key = %(group)s AND id > %(id)s
             ORDER BY id LIMIT %(qty)s + 1)
