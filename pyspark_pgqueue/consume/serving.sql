-- Statements of serving.py, a part each.

-- {serving/load}
SELECT tries, served, acknowledged FROM pgqueue_stream WHERE id = %s AND number = %s FOR UPDATE

-- {serving/store}
INSERT INTO pgqueue_stream (id, number, tries, served, acknowledged) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (id) DO UPDATE
SET number = excluded.number, tries = excluded.tries, served = excluded.served,
    acknowledged = excluded.acknowledged, tried_at = DEFAULT

-- {serving/forget}
-- Streams that ended long ago.
DELETE FROM pgqueue_stream WHERE tried_at < statement_timestamp() - interval '30 days'
