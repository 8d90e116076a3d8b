-- Parts of searches, and the suggestions of the search field.

-- {search/error}: whether the message's error contains a text: that of a failed message, of a dead
-- letter, or of a message that is tried again
(CASE WHEN pg_column_size(m.headers) <= 100000 THEN m.headers #>> '{{x-dead-letter,error}}' END ILIKE %({name})s
 OR EXISTS (SELECT FROM pgqueue_archive a
            WHERE a.id = m.id AND a.queue_id = m.queue_id AND a.enqueued_at = m.enqueued_at
              AND a.error ILIKE %({name})s)
 OR EXISTS (SELECT FROM pgqueue_deferred d
            WHERE d.id = m.id AND d.queue_id = m.queue_id AND d.error ILIKE %({name})s)) IS TRUE

-- {search/suggestions}: keys of bodies and headers, tasks, groups and errors of the newest messages,
-- and the errors of the newest failures; the most frequent first. Large values are not read.
WITH newest AS MATERIALIZED (
    SELECT m.queue_id, m.group_key,
           CASE WHEN pg_column_size(m.body) <= %(small)s THEN m.body END AS body,
           CASE WHEN pg_column_size(m.headers) <= %(small)s THEN m.headers END AS headers
    FROM ({newest}) f
    -- One look-up by index for each of them: a join would read whole tables.
    CROSS JOIN LATERAL (SELECT * FROM pgqueue_message
                        WHERE id = f.id AND queue_id = f.queue_id LIMIT 1) m),
keys AS (
    SELECT 'body.' || k.key AS word, body -> k.key AS value
    FROM newest CROSS JOIN LATERAL jsonb_object_keys(
        CASE jsonb_typeof(body) WHEN 'object' THEN body ELSE '{{}}' END) AS k (key)
    UNION ALL
    SELECT 'headers.' || k.key, NULL
    FROM newest CROSS JOIN LATERAL jsonb_object_keys(
        CASE jsonb_typeof(headers) WHEN 'object' THEN headers ELSE '{{}}' END) AS k (key)),
nested AS (
    SELECT word, NULL::text AS value FROM keys
    UNION ALL
    SELECT word || '.' || k.key, NULL
    FROM keys CROSS JOIN LATERAL jsonb_object_keys(
        CASE jsonb_typeof(value) WHEN 'object' THEN value ELSE '{{}}' END) AS k (key)),
errors AS (
    SELECT substring({errors/line} FROM '^[\w.]+') AS word
    FROM (SELECT headers #>> '{{x-dead-letter,error}}' AS text FROM newest
          UNION ALL
          (SELECT error FROM pgqueue_archive
           WHERE state = 'FAILED' AND (%(queues)s::int[] IS NULL OR queue_id = ANY(%(queues)s::int[]))
           ORDER BY archived_at DESC, id DESC LIMIT (SELECT %(look)s::bigint))) e
    WHERE text IS NOT NULL),
words AS (
    SELECT 'q' AS field, word || ':' AS word FROM nested
    UNION ALL
    SELECT 'q', 'body.task:' || (body ->> 'task') FROM newest
    WHERE body ?& ARRAY['task', 'args', 'kwargs'] AND jsonb_typeof(body -> 'task') = 'string'
    UNION ALL
    SELECT 'q', 'error:' || word FROM errors
    UNION ALL
    SELECT 'group', group_key FROM newest)
SELECT field, word
FROM (SELECT field, word,
             row_number() OVER (PARTITION BY field ORDER BY count(*) DESC, word) AS place
      FROM words WHERE length(word) <= 100 AND (field = 'group' OR word !~ '[\s,]')
      GROUP BY field, word) w
WHERE place <= %(most)s ORDER BY field, place
