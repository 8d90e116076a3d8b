-- Why a message in the queue is not delivered now, and until when at least. P3, P5.
WITH asked AS MATERIALIZED (
    SELECT m.queue_id, m.group_key, s.*
    FROM {message} m CROSS JOIN LATERAL ({reasons/standing}) s
    WHERE m.id = %(id)s
),
{reasons/facts}
SELECT {reasons/reason} AS reason, {reasons/until} AS until
FROM {reasons/from}
