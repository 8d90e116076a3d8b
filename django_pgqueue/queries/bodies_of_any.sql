JOIN pgqueue_bodies(
    {queue_id}, ARRAY(SELECT id FROM taken), (SELECT min(enqueued_at) FROM taken),
    (SELECT max(enqueued_at) FROM taken)) m ON m.id = t.id
