-- How many of the source's messages are unread, up to a limit; the age of the first and of the last of them,
-- in seconds; an estimate of their number, from their share of the source's ids; how many messages were
-- lost; whether the position is unusable; why no message of the subscription is delivered; how many
-- messages were ever sent to the source; and when the first unread one was sent. P1.
WITH place AS MATERIALIZED (
    {subscriptions/place}
),
unread AS MATERIALIZED (
    SELECT m.id, m.enqueued_at FROM place p CROSS JOIN LATERAL ({subscriptions/ahead}) m
    WHERE NOT p.is_foreign
    ORDER BY p.round, m.enqueued_xid, m.id
    LIMIT (SELECT {most})
),
span AS MATERIALIZED (
    SELECT (SELECT id FROM {source_message} ORDER BY id LIMIT 1) AS first,
           (SELECT id FROM {source_message} ORDER BY id DESC LIMIT 1) AS last,
           (SELECT coalesce(sum(pg_stat_get_live_tuples(relid)), 0)
            FROM pg_partition_tree('{source_message}')) AS stored
)
SELECT (SELECT count(*) FROM unread),
       (SELECT extract(epoch FROM statement_timestamp() - enqueued_at)::float FROM unread LIMIT 1),
       (SELECT extract(epoch FROM statement_timestamp() - enqueued_at)::float FROM {source_message}
        WHERE EXISTS (SELECT FROM unread) ORDER BY enqueued_xid DESC, id DESC LIMIT 1),
       (SELECT (stored * (last - (SELECT min(id) FROM unread) + 1) / (last - first + 1))::bigint
        FROM span WHERE last IS NOT NULL),
       (SELECT max(lost) FROM place), coalesce((SELECT bool_or(is_foreign) FROM place), true),
       (SELECT held FROM (SELECT {queue_id} AS queue_id) k CROSS JOIN LATERAL ({reasons/whole}) o),
       (SELECT coalesce(sum(pg_stat_get_tuples_inserted(relid)), 0)::bigint
        FROM pg_partition_tree('{source_message}')),
       (SELECT enqueued_at FROM unread LIMIT 1)
