-- Lease up to qty of the source's messages behind the position, and move it past them. A round reads
-- what one snapshot shows, in as many reads as it takes; the next round begins where nothing was left.
--
-- The DELETE of the position is a compare-and-swap: of two reads that saw the same one, one moves it.
-- A row with a note is no delivery. 'early': a leased message that its sender has delayed. 'again': read
-- again, since another read moved the position, the round ended early, or messages were skipped. 'own':
-- fewer were found than asked for, and some of the subscription's own messages are due. 'foreign': the
-- position is missing or comes from another system. P1, P2, P5, P6.
WITH {admit}place AS MATERIALIZED (
    {subscriptions/place}
),
seen (xid, id, enqueued_at, priority, group_key, skipped{read_names}) AS MATERIALIZED (
    SELECT m.enqueued_xid, m.id, m.enqueued_at, m.priority, m.group_key, {subscriptions/skipped}{read_columns}
    FROM place p CROSS JOIN LATERAL ({subscriptions/ahead}) m
    WHERE NOT p.is_foreign
    ORDER BY m.enqueued_xid, m.id
    LIMIT (SELECT {most})
),
last AS MATERIALIZED (
    SELECT xid, id FROM seen ORDER BY xid DESC, id DESC LIMIT 1
),
round AS MATERIALIZED (
    SELECT count(*) AS seen, count(*) FILTER (WHERE NOT skipped) AS found, (SELECT {most}) AS most,
           {ends_round} AND (count(*) < (SELECT {most}) OR (
               SELECT true FROM place p CROSS JOIN last l CROSS JOIN LATERAL (
                   SELECT FROM {source_message} m
                   WHERE (m.enqueued_xid, m.id) > (l.xid, l.id) AND {subscriptions/in_round}
                   ORDER BY m.enqueued_xid, m.id LIMIT 1) m) IS NULL) AS is_over
    FROM seen
),
moved AS (
    DELETE FROM pgqueue_cursor
    WHERE queue_id = {queue_id} AND number = (
        SELECT p.number FROM place p, round r
        WHERE NOT p.is_foreign AND r.most > 0 AND (r.seen > 0 OR r.is_over AND p.until IS NOT NULL))
    RETURNING number, since, system, lost, told, last_id
),
placed AS (
    INSERT INTO pgqueue_cursor (queue_id, number, system, lost, told, since, until, after_xid, after_id, last_id)
    SELECT {queue_id}, c.number + 1, c.system, c.lost, c.told,
           CASE WHEN r.is_over THEN p.target ELSE c.since END,
           CASE WHEN NOT r.is_over THEN p.target END,
           CASE WHEN r.is_over THEN 0 ELSE last.xid END, CASE WHEN r.is_over THEN 0 ELSE last.id END,
           greatest(c.last_id, last.id)
    FROM moved c CROSS JOIN place p CROSS JOIN round r LEFT JOIN last ON true
),
taken AS (
    SELECT * FROM seen WHERE NOT skipped AND (SELECT count(*) FROM moved) = 1
),
{leased}
SELECT {subscriptions/delivered}, CASE WHEN NOT r.is_over THEN p.number + 1 ELSE 0 END
FROM (SELECT (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint AS us) now
CROSS JOIN round r CROSS JOIN place p CROSS JOIN taken t
WHERE {leases/unflushed}{admitted}
UNION ALL
SELECT n.note, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL{no_columns}, 0
FROM round r LEFT JOIN place p ON true
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN p.is_foreign IS NOT FALSE THEN 'foreign'
        WHEN r.most > 0 AND (r.seen > 0 OR r.is_over AND p.until IS NOT NULL) AND (
            (SELECT count(*) FROM moved) = 0
            OR r.is_over AND p.until IS NOT NULL OR r.seen = r.most AND r.found < r.seen) THEN 'again'
        WHEN r.found < (SELECT %(qty)s::bigint) AND ({subscriptions/own_due}) THEN 'own' END AS note) n
WHERE n.note IS NOT NULL
