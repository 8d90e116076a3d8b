-- Lease up to qty more messages of the round that this process's last read began or went on with. The
-- position with that number is taken first: if another read has moved it, or it is before the
-- transactions that were late, returns a row with the note 'again', and read_next.sql does it. The
-- result is that of read_next.sql. P1.
WITH moved AS (
    DELETE FROM pgqueue_cursor c
    WHERE c.queue_id = {queue_id} AND c.number = %(number)s AND c.until IS NOT NULL
      AND c.after_xid >= pg_snapshot_xmax(c.since)::text::bigint
      AND pg_snapshot_xmax(c.until)::text::bigint <= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    RETURNING c.*, c.until AS target, pg_snapshot_xmin(c.until)::text::bigint AS target_min,
              pg_snapshot_xmax(c.until)::text::bigint AS target_max
),
seen (xid, id, enqueued_at, priority, group_key, skipped{read_names}) AS MATERIALIZED (
    SELECT m.enqueued_xid, m.id, m.enqueued_at, m.priority, m.group_key, {subscriptions/skipped}{read_columns}
    FROM moved p CROSS JOIN LATERAL (
        SELECT * FROM {source_message} m
        WHERE (m.enqueued_xid, m.id) > (p.after_xid, p.after_id) AND {subscriptions/in_round}
        ORDER BY m.enqueued_xid, m.id LIMIT (SELECT {most})) m
),
round AS MATERIALIZED (
    SELECT count(*) AS seen, count(*) FILTER (WHERE NOT skipped) AS found,
           count(*) < (SELECT {most}) AS is_over, max(xid) AS xid, max(id) AS last_id
    FROM seen
),
placed AS (
    INSERT INTO pgqueue_cursor (queue_id, number, system, lost, told, since, until, after_xid, after_id, last_id)
    SELECT {queue_id}, c.number + 1, c.system, c.lost, c.told,
           CASE WHEN r.is_over THEN c.until ELSE c.since END,
           CASE WHEN NOT r.is_over THEN c.until END,
           CASE WHEN r.is_over THEN 0 ELSE r.xid END,
           CASE WHEN r.is_over THEN 0 ELSE (SELECT max(s.id) FROM seen s WHERE s.xid = r.xid) END,
           greatest(c.last_id, r.last_id)
    FROM moved c CROSS JOIN round r
),
taken AS (
    SELECT * FROM seen WHERE NOT skipped
),
{leased}
SELECT {subscriptions/delivered}, CASE WHEN NOT r.is_over THEN %(number)s + 1 ELSE 0 END
FROM (SELECT (extract(epoch FROM statement_timestamp()) * 1000000::numeric)::bigint AS us) now
CROSS JOIN round r CROSS JOIN taken t
WHERE {leases/unflushed}
UNION ALL
SELECT 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL{no_columns}, 0
FROM round r WHERE r.is_over OR r.found < r.seen
