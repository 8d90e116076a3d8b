"""Counts the messages of a roll-up: one statement per queue, all in one snapshot.

PostgreSQL aggregates, so only figures leave the server.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg import sql

from django_pgqueue.engine.names import table_names
from pyspark_pgqueue.rollup.figures import Figures, Removed, moment
from pyspark_pgqueue.rollup.statistics import (
    FREQUENT,
    LONGEST_LIST,
    PERCENTS,
    SUMS,
    TIMES,
    WORST,
    Frequent,
    Time,
    Worst,
    bin_of,
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


_BUCKET = "floor(date_part('epoch', {}) / %(seconds)s)::integer"
_ARCHIVED_ROWS = "(SELECT a.* FROM {archive} a WHERE {since}) ended"
_ROWS = """(
        SELECT a.*, m.scheduled_at, m.group_key
        FROM {archive} a JOIN {message} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at
        WHERE {since}
    ) ended"""


def _statement() -> str:
    """The statement that counts a queue's messages that ended.

    Percentiles need each span's times sorted. The other figures are computed from counts of rows by
    value.
    """
    parts = {
        "bucket": _BUCKET.format("archived_at"),
        "sent_bucket": _BUCKET.format("enqueued_at"),
        **SUMS,
        **{name: _length(time) for name, time in TIMES.items()},
        **{name: each.value for name, each in FREQUENT.items() if not each.is_rare},
    }
    bins = [f"{name}_bin" for name in TIMES]
    totals = {name: time.total for name, time in TIMES.items() if time.total}
    values = ", ".join(["bucket", "sent_bucket", *SUMS, *bins])
    computed = _list("{1} AS {0}_bin", {name: bin_of(name) for name in TIMES})
    percentiles = "percentile_cont(%(parts)s::float8[]) WITHIN GROUP (ORDER BY {0}) AS {0}"
    others = [
        *(_frequent(name, each) for name, each in FREQUENT.items()),
        *(_worst(name, each) for name, each in WORST.items()),
    ]
    return f"""
WITH ended AS MATERIALIZED (
    SELECT {_list("{1} AS {0}", parts)} FROM {_ROWS}
),
counted AS MATERIALIZED (
    SELECT {values}, count(*) AS count, {_list("sum({0}) AS {1}", totals)}
    FROM (SELECT *, {computed} FROM ended) placed GROUP BY {values}
),
timed AS MATERIALIZED (
    SELECT bucket, {_list(percentiles, TIMES)} FROM ended GROUP BY bucket
),
total AS MATERIALIZED (
    SELECT bucket, sum(count) AS count, {_list("sum(count * {0}) AS {0}", SUMS)},
           {_list("coalesce(sum({1}), 0) AS {1}", totals)}
    FROM counted GROUP BY bucket
)
{_row("bucket", "'ended'", "(to_jsonb(total) || to_jsonb(timed)) - 'bucket'")}
FROM total JOIN timed USING (bucket)
UNION ALL
{_row("sent_bucket", "'sent'", "to_jsonb(sum(count))")} FROM counted GROUP BY sent_bucket
UNION ALL
{_row("bucket", "kind", "jsonb_object_agg(bin, count)")}
FROM (SELECT kind, bucket, bin, sum(count) AS count
      FROM counted, LATERAL (VALUES {_list("('{0}s', {0}_bin)", TIMES)}) bins (kind, bin)
      WHERE bin IS NOT NULL GROUP BY 1, 2, 3) each
GROUP BY kind, bucket
UNION ALL
{" UNION ALL ".join(others)}
"""


def _length(time: Time) -> str:
    """SQL for a message's time in seconds; NULL if it does not have this time."""
    length = f"date_part('epoch', {time.end} - {time.start})"
    return f"CASE WHEN {time.exists} THEN greatest({length}, 0) END"


def _list(text: str, found: Iterable[str] | Mapping[str, str]) -> str:
    """A list in SQL: ``text`` for each name, and for the name's value in a mapping."""
    values = found if isinstance(found, Mapping) else dict.fromkeys(found, "")
    return ", ".join(text.format(name, values[name]) for name in values)


def _row(bucket: str, kind: str, told: str) -> str:
    return f"SELECT %(name)s::text, {bucket} * %(seconds)s::bigint, {kind}, {told}"


def _frequent(name: str, each: Frequent) -> str:
    values = f"SELECT bucket, {name} AS value FROM ended"
    if each.is_rare:
        bucket = _BUCKET.format("archived_at")
        values = f"SELECT {bucket} AS bucket, {each.value} AS value FROM {_ARCHIVED_ROWS}"
    most = "jsonb_agg(jsonb_build_array(value, count) ORDER BY place)"
    return (
        _row("bucket", f"'{name}'", f"jsonb_build_array(min(number), {most})")
        + f"""
        FROM (SELECT *, count(*) OVER (PARTITION BY bucket) AS number,
                     row_number() OVER (PARTITION BY bucket
                                        ORDER BY count DESC, value COLLATE "C") AS place
              FROM (SELECT bucket, value, count(*) AS count FROM ({values}) all_values
                    WHERE value IS NOT NULL GROUP BY 1, 2) counted) ranked
        WHERE place <= {LONGEST_LIST} GROUP BY bucket"""
    )


def _worst(name: str, each: Worst) -> str:
    columns = ", ".join(each.columns)
    told = f"jsonb_agg(jsonb_build_array({columns}) ORDER BY place)"
    return (
        _row("bucket", f"'{name}'", told)
        + f"""
        FROM (SELECT *, row_number() OVER (PARTITION BY bucket
                                           ORDER BY {", ".join(each.order)}) AS place
              FROM (SELECT {_BUCKET.format("archived_at")} AS bucket, {columns}
                    FROM {_ARCHIVED_ROWS} WHERE {each.condition}) found) ranked
        WHERE place <= {LONGEST_LIST} GROUP BY bucket"""
    )


_ARCHIVED = _statement()

_LETTERS = f"""
SELECT told ->> 'source',
       {_BUCKET.format("(told ->> 'dead_lettered_at')::timestamptz")} * %(seconds)s::bigint,
       'dead', count(*)
FROM (SELECT m.headers -> 'x-dead-letter' AS told FROM {{rows}}
      AND m.headers ? 'x-dead-letter') letters
WHERE told ->> 'source' IS NOT NULL
GROUP BY 1, 2
"""

_ARCHIVED_LETTERS = _LETTERS.format(
    rows="{archive} a JOIN {message} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at "
    "WHERE {since}"
)

_LIVE = f"""
WITH live AS (
    SELECT q.name, l.id, l.queue_id, l.enqueued_at,
           EXISTS (SELECT FROM pgqueue_queue s WHERE s.dead_letter_queue_id = q.id) AS dead
    FROM pgqueue_live l JOIN pgqueue_queue q ON q.id = l.queue_id
)
SELECT name, {_BUCKET.format("enqueued_at")} * %(seconds)s::bigint, 'sent', count(*)
FROM live GROUP BY 1, 2
UNION ALL
""" + _LETTERS.format(
    rows="live l JOIN pgqueue_message m ON m.id = l.id AND m.queue_id = l.queue_id "
    "AND m.enqueued_at = l.enqueued_at WHERE l.dead"
)


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
                for text in ((_ARCHIVED, _ARCHIVED_LETTERS) if has_dead_letters else (_ARCHIVED,))
                for row in connection.execute(
                    text.format(**table_names(pk), since=condition), {**params, "name": name}
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
               extract(epoch FROM coalesce(a.first_at, p.purged_at))::float8
        FROM pgqueue_purge_mark p
        LEFT JOIN pgqueue_queue q ON q.id = p.queue_id
        CROSS JOIN LATERAL (SELECT min(archived_at) AS first_at
                            FROM pgqueue_archive WHERE queue_id = p.queue_id) a
        """
    )
    return [Removed(*row) for row in rows]
