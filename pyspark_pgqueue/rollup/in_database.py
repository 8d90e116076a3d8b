"""The database's part of a roll-up: one statement per queue, all in one snapshot.

PostgreSQL aggregates, so only figures leave the server.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg import sql

from pyspark_pgqueue.rollup.figures import (
    BUCKET,
    FIRST_LINE,
    LONGEST_LIST,
    PERCENTS,
    POISONOUS,
    RAN,
    READ,
    RETRIED,
    Figures,
    Removed,
    moment,
)
from pyspark_pgqueue.source import database

#: Memory for sorting times and counting values. At the default, 4 MB, most spills to disk.
WORK_MEM = "256MB"


@contextmanager
def one_snapshot(url: str) -> Iterator[list[psycopg.Connection[Any]]]:
    """Two connections that see one snapshot."""
    with database.connect(url) as one, database.connect(url) as other:
        for connection in (one, other):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if connection is other:
                [(snapshot,)] = one.execute("SELECT pg_export_snapshot()")
                other.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            connection.execute(f"SET LOCAL work_mem = '{WORK_MEM}'")
            connection.execute("SET LOCAL jit = off")
        yield [one, other]


_PLACE = BUCKET.format("ln(greatest({}, 1e-6)) / ln(2::float8)") + "::integer"

# Percentiles need each span's times sorted. The other figures are computed from counts of rows by
# value. Errors and high delivery counts, which few rows have, are read separately, so that the
# intermediate rows stay narrow.
_ARCHIVED = f"""
WITH ended AS MATERIALIZED (
    SELECT floor(date_part('epoch', a.archived_at) / %(seconds)s)::integer AS bucket,
           floor(date_part('epoch', a.enqueued_at) / %(seconds)s)::integer AS sent_bucket,
           a.state = 'COMPLETED' AS completed, a.state = 'FAILED' AS failed,
           {RETRIED} AS retried,
           CASE WHEN {READ} THEN greatest(0, date_part('epoch', a.first_read_at
               - greatest(a.enqueued_at, m.scheduled_at))) END AS wait,
           CASE WHEN {RAN} THEN greatest(0, date_part('epoch', a.archived_at - a.last_read_at))
               END AS run,
           m.group_key
    FROM pgqueue_archive_q{{id}} a
    JOIN pgqueue_message_q{{id}} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at
    WHERE {{since}}
),
counted AS MATERIALIZED (
    SELECT bucket, sent_bucket, completed, failed, retried,
           {_PLACE.format("wait")} AS wait_place, {_PLACE.format("run")} AS run_place,
           count(*) AS count, sum(run) AS busy
    FROM ended GROUP BY 1, 2, 3, 4, 5, 6, 7
),
timed AS MATERIALIZED (
    SELECT bucket,
           percentile_cont(%(parts)s::float8[]) WITHIN GROUP (ORDER BY wait) AS waits,
           percentile_cont(%(parts)s::float8[]) WITHIN GROUP (ORDER BY run) AS runs
    FROM ended GROUP BY bucket
),
total AS MATERIALIZED (
    SELECT bucket, sum(count) AS count,
           coalesce(sum(count) FILTER (WHERE completed), 0) AS completed,
           coalesce(sum(count) FILTER (WHERE failed), 0) AS failed,
           coalesce(sum(count * retried), 0) AS retried,
           coalesce(sum(busy), 0) AS busy
    FROM counted GROUP BY bucket
),
poison AS (
    SELECT *, row_number() OVER (PARTITION BY bucket ORDER BY read_ct DESC, id) AS place
    FROM (SELECT floor(date_part('epoch', a.archived_at) / %(seconds)s)::integer AS bucket,
                 a.id, a.read_ct, a.state
          FROM pgqueue_archive_q{{id}} a
          WHERE a.read_ct >= {POISONOUS} AND {{since}}) each
),
grouped AS (
    SELECT *, row_number() OVER (PARTITION BY bucket
                                 ORDER BY count DESC, value COLLATE "C") AS place,
           count(*) OVER (PARTITION BY bucket) AS groups
    FROM (SELECT bucket, group_key AS value, count(*) AS count
          FROM ended WHERE group_key IS NOT NULL GROUP BY 1, 2) each
),
failing AS (
    SELECT *, row_number() OVER (PARTITION BY bucket
                                 ORDER BY count DESC, value COLLATE "C") AS place
    FROM (SELECT floor(date_part('epoch', a.archived_at) / %(seconds)s)::integer AS bucket,
                 left(split_part(ltrim(a.error), chr(10), 1), {FIRST_LINE}) AS value,
                 count(*) AS count
          FROM pgqueue_archive_q{{id}} a
          WHERE a.error IS NOT NULL AND {{since}} GROUP BY 1, 2) each
)
SELECT %(name)s::text, bucket * %(seconds)s::bigint, 'ended', to_jsonb(total) || to_jsonb(timed)
FROM total JOIN timed USING (bucket)
UNION ALL
SELECT %(name)s::text, sent_bucket * %(seconds)s::bigint, 'sent', to_jsonb(sum(count))
FROM counted GROUP BY sent_bucket
UNION ALL
SELECT %(name)s::text, bucket * %(seconds)s::bigint, kind, jsonb_object_agg(place, count)
FROM (SELECT kind, bucket, place, sum(count) AS count
      FROM counted, LATERAL (VALUES ('waits', wait_place), ('runs', run_place)) bin (kind, place)
      WHERE place IS NOT NULL GROUP BY 1, 2, 3) each
GROUP BY kind, bucket
UNION ALL
SELECT %(name)s::text, bucket * %(seconds)s::bigint, 'poison',
       jsonb_agg(jsonb_build_object('id', id, 'read_ct', read_ct, 'state', state) ORDER BY place)
FROM poison WHERE place <= {LONGEST_LIST} GROUP BY bucket
UNION ALL
SELECT %(name)s::text, bucket * %(seconds)s::bigint, 'top_group',
       jsonb_build_object('groups', groups, 'group', value, 'count', count)
FROM grouped WHERE place = 1
UNION ALL
SELECT %(name)s::text, bucket * %(seconds)s::bigint, 'top_errors',
       jsonb_agg(jsonb_build_object('error', value, 'count', count) ORDER BY place)
FROM failing WHERE place <= {LONGEST_LIST} GROUP BY bucket
"""

_LETTERS = """
SELECT told ->> 'source', floor(date_part('epoch', (told ->> 'dead_lettered_at')::timestamptz)
                                / %(seconds)s)::bigint * %(seconds)s, 'dead', count(*)
FROM (SELECT m.headers -> 'x-dead-letter' AS told
      FROM pgqueue_archive_q{id} a
      JOIN pgqueue_message_q{id} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at
      WHERE m.headers ? 'x-dead-letter' AND {since}) letters
WHERE told ->> 'source' IS NOT NULL
GROUP BY 1, 2
"""

_LIVE = """
WITH live AS (
    SELECT q.name, l.id, l.queue_id, l.enqueued_at,
           EXISTS (SELECT FROM pgqueue_queue s WHERE s.dead_letter_queue_id = q.id) AS dead
    FROM pgqueue_live l JOIN pgqueue_queue q ON q.id = l.queue_id
), letter AS (
    SELECT m.headers -> 'x-dead-letter' AS told
    FROM live l JOIN pgqueue_message m
        ON m.id = l.id AND m.queue_id = l.queue_id AND m.enqueued_at = l.enqueued_at
    WHERE l.dead AND m.headers ? 'x-dead-letter'
)
SELECT name, floor(date_part('epoch', enqueued_at) / %(seconds)s)::bigint * %(seconds)s,
       'sent', count(*)
FROM live GROUP BY 1, 2
UNION ALL
SELECT told ->> 'source',
       floor(date_part('epoch', (told ->> 'dead_lettered_at')::timestamptz) / %(seconds)s)::bigint
       * %(seconds)s, 'dead', count(*)
FROM letter WHERE told ->> 'source' IS NOT NULL GROUP BY 1, 2
"""


def count_archived(
    connections: Sequence[psycopg.Connection[Any]],
    figures: Figures,
    start: int,
    first_xid: int,
    progress: Callable[[int, int], None],
) -> None:
    """Count the messages archived in the bucket ``start`` or later, in SQL.

    No transaction before ``first_xid`` archived one of these messages, and a condition on the
    transaction can use an index. Each connection counts one queue at a time: PostgreSQL
    parallelises a large table by itself, but not a hundred small ones.
    """
    asking = (
        "SELECT q.id, q.name, "
        "EXISTS (SELECT FROM pgqueue_queue s WHERE s.dead_letter_queue_id = q.id) "
        "FROM pgqueue_queue q ORDER BY q.name"
    )
    queues = connections[0].execute(asking).fetchall()
    condition = "a.archive_xid >= %(xid)s AND a.archived_at >= %(start)s"
    params: dict[str, Any] = {
        "seconds": figures.seconds,
        "parts": [percent / 100 for percent in PERCENTS],
        "xid": first_xid,
        "start": moment(start),
    }
    idle: SimpleQueue[psycopg.Connection[Any]] = SimpleQueue()
    for connection in connections:
        idle.put(connection)

    def count(pk: int, name: str, has_dead_letters: bool) -> list[Any]:
        connection = idle.get()
        try:
            return [
                row
                for text in ((_ARCHIVED, _LETTERS) if has_dead_letters else (_ARCHIVED,))
                for row in connection.execute(
                    text.format(id=pk, since=condition), {**params, "name": name}
                )
            ]
        finally:
            idle.put(connection)

    with ThreadPoolExecutor(len(connections)) as pool:
        counted = [pool.submit(count, *queue) for queue in queues]
        try:
            for done, future in enumerate(counted):
                progress(done, len(queues))
                for row in future.result():
                    figures.add(*row)
        except BaseException:
            # On interruption, cancel the other threads' statements too.
            pool.shutdown(wait=False, cancel_futures=True)
            for connection in connections:
                connection.cancel_safe()
            raise
    progress(len(queues), len(queues))


def count_live(connection: psycopg.Connection[Any], figures: Figures) -> None:
    """Count the messages still in the queues, by time sent, and the dead letters among them."""
    for row in connection.execute(_LIVE, {"seconds": figures.seconds}):
        figures.add(*row)


def first_bucket(
    connection: psycopg.Connection[Any], seconds: int, below_xid: int, reached: dt.datetime
) -> int | None:
    """Return the first span that changed since a run that saw all transactions below ``below_xid``.

    A message counts in the span in which it was sent and in the span in which it ended. Transaction
    ids, not times, show which messages are new: a message sent before the run may commit after it.
    """
    [(first,)] = connection.execute(
        """
        SELECT floor(date_part('epoch', least(
            (SELECT min(archived_at) FROM pgqueue_archive WHERE archive_xid >= %(xid)s),
            (SELECT min(a.enqueued_at)
             FROM pgqueue_archive a
             JOIN pgqueue_message m ON m.id = a.id AND m.queue_id = a.queue_id
                                   AND m.enqueued_at = a.enqueued_at
             WHERE a.archive_xid >= %(xid)s AND a.enqueued_at < %(at)s
               AND m.enqueued_xid >= %(xid)s),
            (SELECT min(m.enqueued_at)
             FROM pgqueue_live l
             JOIN pgqueue_message m ON m.id = l.id AND m.queue_id = l.queue_id
                                   AND m.enqueued_at = l.enqueued_at
             WHERE l.enqueued_at < %(at)s AND m.enqueued_xid >= %(xid)s)
        )) / %(seconds)s)::bigint * %(seconds)s
        """,
        {"xid": below_xid, "at": reached, "seconds": seconds},
    )
    return None if first is None else int(first)


def removed(connection: psycopg.Connection[Any]) -> list[Removed]:
    """The queues with removed messages, and the time from which each is complete."""
    rows = connection.execute(
        """
        SELECT coalesce(q.name, p.dropped),
               extract(epoch FROM coalesce(a.first_at, p.purged_at))::float8, q.id IS NULL
        FROM pgqueue_purge_mark p
        LEFT JOIN pgqueue_queue q ON q.id = p.queue_id
        CROSS JOIN LATERAL (SELECT min(archived_at) AS first_at
                            FROM pgqueue_archive WHERE queue_id = p.queue_id) a
        """
    )
    return [Removed(*row) for row in rows]
