-- Statements of runs.py, a part each.

-- {runs/fail}
-- Records an error in the lake's unfinished run, or adds a failed run for it.
WITH unfinished AS (
    UPDATE pgqueue_export_run
    SET error = %(error)s,
        state = CASE state WHEN 'RUNNING' THEN 'FAILED' ELSE state END,
        finished_at = CASE state WHEN 'RUNNING' THEN clock_timestamp() END
    WHERE lake_id = (SELECT id FROM pgqueue_lake WHERE path = %(path)s)
      AND state IN ('RUNNING', 'PUBLISHING')
    RETURNING id
)
INSERT INTO pgqueue_export_run (lake_id, kind, state, from_xid, to_xid, rows, files, bytes,
                                manifest, error, finished_at)
SELECT id, 'EXPORT', 'FAILED', exported_below, exported_below, 0, 0, 0, '{{}}', %(error)s,
       clock_timestamp()
FROM pgqueue_lake WHERE path = %(path)s AND %(anew)s AND NOT EXISTS (SELECT FROM unfinished)

-- {runs/has_files}
-- Whether a run has published files of a lake, or began to.
(pgqueue_lake.exported_at IS NOT NULL OR EXISTS (
    SELECT FROM pgqueue_export_run r WHERE r.lake_id = pgqueue_lake.id AND r.state = 'PUBLISHING'))

-- {runs/register}
-- Adds a lake, or changes its settings. Until a run has published files, each call may choose other
-- queues.
INSERT INTO pgqueue_lake
    (path, queues, holds_retention, exported_below, system, iceberg, body_schemas)
VALUES (%(path)s, %(queues)s, coalesce(%(holds)s, false), 0, %(system)s, %(table)s, '{{}}')
ON CONFLICT (path) DO UPDATE
SET holds_retention = coalesce(%(holds)s, pgqueue_lake.holds_retention),
    iceberg = coalesce(nullif(pgqueue_lake.iceberg, ''), excluded.iceberg),
    queues = CASE WHEN {has_files} THEN pgqueue_lake.queues ELSE excluded.queues END
RETURNING {columns}

-- {runs/groups}
-- The files are those of the finished runs. A directory may have others: while a run is published,
-- and while replaced files are deleted.
WITH run AS (
    SELECT kind, to_xid, manifest FROM pgqueue_export_run
    WHERE lake_id = %(lake)s AND state = 'DONE'
),
gone AS (SELECT jsonb_array_elements_text(manifest -> 'delete') AS place FROM run)
SELECT place, (g ->> 0)::bigint, (g ->> 1)::bigint, (g ->> 2)::bigint
FROM run, jsonb_array_elements(manifest -> 'add') file,
     jsonb_array_elements(file -> 'groups') g, concat(file ->> 'to') AS places (place)
WHERE (kind = 'COMPACT' OR to_xid > %(low)s)
  AND (g ->> 0)::bigint < %(high)s AND (g ->> 1)::bigint >= %(low)s
  AND starts_with(place, 'archive/')
  AND {selected}
  AND NOT EXISTS (SELECT FROM gone WHERE gone.place = places.place)
ORDER BY place COLLATE "C"  -- the files of a directory one after the other

-- {runs/lacking}
-- A stream that began with the lake does not miss what was purged before the lake's first run.
SELECT queue, below::bigint
FROM pgqueue_export_run, jsonb_each_text(manifest -> 'lacks') AS lack (queue, below)
WHERE lake_id = %(lake)s AND state = 'DONE' AND to_xid > %(low)s
  AND (from_xid > 0 OR lake_id <> %(began)s)
  AND {selected}
ORDER BY queue

-- {runs/died}
UPDATE pgqueue_export_run
SET state = 'FAILED', finished_at = clock_timestamp(), error = 'The process died, or was killed.'
WHERE lake_id = %s AND state = 'RUNNING'

-- {runs/unfinished}
SELECT id, manifest FROM pgqueue_export_run WHERE lake_id = %s AND state = 'PUBLISHING'

-- {runs/begin}
INSERT INTO pgqueue_export_run
    (lake_id, kind, state, from_xid, to_xid, rows, files, bytes, manifest, error)
VALUES (%s, %s, 'RUNNING', %s, %s, 0, 0, 0, '{{}}', '') RETURNING id

-- {runs/resume}
UPDATE pgqueue_export_run SET resumed_by_id = %s
WHERE lake_id = %s AND kind = %s AND state = 'FAILED' AND resumed_by_id IS NULL RETURNING id

-- {runs/publishing}
UPDATE pgqueue_export_run
SET state = 'PUBLISHING', manifest = %s, rows = %s, files = %s, bytes = %s WHERE id = %s

-- {runs/done}
UPDATE pgqueue_export_run SET state = 'DONE', error = '', finished_at = clock_timestamp()
WHERE id = %s RETURNING kind, to_xid, lake_id

-- {runs/exported}
UPDATE pgqueue_lake
SET exported_below = %(below)s,
    exported_at = coalesce(
        (SELECT min(archived_at) FROM pgqueue_archive WHERE archive_xid >= %(below)s),
        clock_timestamp())
WHERE id = %(lake)s

-- {runs/replaced}
SELECT jsonb_array_elements_text(manifest -> 'remove') FROM pgqueue_export_run
WHERE lake_id = %s AND kind = 'COMPACT' AND state IN ('PUBLISHING', 'DONE')
