-- Statements of writing.py, a part each.

-- {writing/arrived}
CREATE TEMPORARY TABLE pgqueue_arrived (
    place bigint GENERATED ALWAYS AS IDENTITY,
    queue_id integer,
    delay double precision CHECK (delay < 'Infinity' AND delay > '-Infinity'),
    expires double precision CHECK (expires > 0 AND expires < 'Infinity'),
    {given}
) ON COMMIT DROP;
ALTER TABLE pgqueue_arrived ALTER priority SET DEFAULT 0

-- {writing/once}
-- Claims the rows' unique keys, as send_batch does. The trigger of the queue's own table adds the
-- inserted messages to the queue, and wakes consumers.
WITH arrived AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY place) AS place, delay, expires, {given}
    FROM pgqueue_arrived WHERE queue_id = {queue_id}
),
claimed AS MATERIALIZED (
    SELECT c.* FROM (
        SELECT array_agg(unique_key ORDER BY place) AS keys,
               array_agg(priority ORDER BY place) AS priorities,
               array_agg(group_key ORDER BY place) AS groups
        FROM arrived) a
    CROSS JOIN LATERAL pgqueue_claim_keys(
        {queue_id}, keys, priorities, groups, %(kind)s, %(window)s::interval, %(on_conflict)s,
        %(max_wait)s) c
)
INSERT INTO {message} (id, queue_id, scheduled_at, expires_at, {given})
SELECT c.id, {queue_id},
       CASE WHEN delay > 0 THEN statement_timestamp() + delay * interval '1 second' END,
       statement_timestamp() + expires * interval '1 second', {given}
FROM arrived a JOIN claimed c USING (place)
WHERE c.conflict IS DISTINCT FROM 'skipped'
ORDER BY c.id

-- {writing/is_new}
INSERT INTO pgqueue_spark_txn AS t (app_id, version, sent)
VALUES (%(app_id)s, %(version)s, %(rows)s)
ON CONFLICT (app_id) DO UPDATE
SET version = excluded.version, sent = excluded.sent, committed_at = DEFAULT
WHERE t.version < excluded.version

-- {writing/open}
-- The entry of an operation that has not ended: the same call by the same actor, interrupted or not.
operation = %(operation)s AND arguments @> %(id)s::jsonb AND who = %(who)s AND ended_at IS NULL

-- {writing/add}
UPDATE pgqueue_audit SET count = count + %(count)s
WHERE {open} AND queue_id = %(queue_id)s RETURNING id

-- {writing/end}
UPDATE pgqueue_audit SET ended_at = statement_timestamp() WHERE {open}
