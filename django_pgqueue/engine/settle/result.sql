-- An archived message's state and error, and what its handler returned.
SELECT state, error, result::text FROM {archive} WHERE id = %(id)s::bigint AND queue_id = {queue_id}
