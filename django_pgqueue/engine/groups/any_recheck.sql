-- Whether any group may lack a head. P6.
SELECT true FROM pgqueue_recheck WHERE queue_id = {queue_id} ORDER BY id LIMIT 1
