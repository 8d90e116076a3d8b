-- Spark and PostgreSQL build the same text of a message, and sum the first 32 bits of its MD5.

-- {verify/spark}
SELECT queue, count(*),
       coalesce(sum(cast(conv(substr(md5(concat_ws('|', cast(id AS string), state,
           cast(read_ct AS string), cast(attempts AS string),
           cast(unix_micros(enqueued_at) AS string), cast(unix_micros(archived_at) AS string),
           coalesce(error, '~'), coalesce(headers, '~'), coalesce(body, '~'))),
           1, 8), 16, 10) AS bigint)), 0)
FROM pgqueue_verified WHERE archive_xid >= {low} AND archive_xid < {high} GROUP BY queue

-- {verify/postgres}
SELECT q.name, count(*),
       sum(('x' || substr(md5(concat_ws('|', a.id, a.state, a.read_ct, a.attempts,
           (extract(epoch FROM a.enqueued_at) * 1000000)::bigint,
           (extract(epoch FROM a.archived_at) * 1000000)::bigint,
           coalesce(a.error, '~'), coalesce(m.headers::text, '~'), coalesce(m.body::text, '~'))),
           1, 8))::bit(32)::bigint)::bigint
FROM pgqueue_archive a
JOIN pgqueue_queue q ON q.id = a.queue_id
JOIN pgqueue_message m
    ON m.id = a.id AND m.queue_id = a.queue_id AND m.enqueued_at = a.enqueued_at
WHERE a.archive_xid >= %(low)s AND a.archive_xid < %(high)s
  AND (%(all)s OR lower(q.name) = ANY(%(names)s))
GROUP BY q.name
