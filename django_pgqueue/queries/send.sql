-- One message as most are: at once, in its order, without a group and a key. A tenth cheaper than
-- send_full.sql. The trigger on the leaf makes it readable and wakes consumers.
INSERT INTO {message} (queue_id, headers, body)
VALUES ({queue_id}, %(headers)s::jsonb, %(body)s::jsonb)
RETURNING id
