"""The roll-up job: statistics for each queue, by spans of time.

PostgreSQL counts the messages in the database, in one snapshot, so that each message is counted
exactly once. Spark counts the spans that a lake has completely.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from pyspark_pgqueue.errors import InvalidOption, ServerChanged
from pyspark_pgqueue.jobs.progress import Progress, quiet
from pyspark_pgqueue.lake import runs
from pyspark_pgqueue.lake.stores import address
from pyspark_pgqueue.rollup import in_database, in_lake
from pyspark_pgqueue.rollup.figures import Figures, Key, bucket_of, moment
from pyspark_pgqueue.rollup.statistics import COLUMNS
from pyspark_pgqueue.source import database

HOUR = 3600


@dataclass(frozen=True)
class Summary:
    """The result of a roll-up."""

    from_at: dt.datetime
    to_at: dt.datetime
    buckets: int
    removed: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.buckets:,} roll-ups computed, from {self.from_at:%Y-%m-%d %H:%M} to "
            f"{self.to_at:%Y-%m-%d %H:%M}; {self.removed} empty ones deleted; {self.seconds:.1f} s."
        )


def rollup(
    spark: Any,
    url: str,
    *,
    seconds: int = HOUR,
    from_at: dt.datetime | None = None,
    to_at: dt.datetime | None = None,
    every: bool = False,
    lake: str | None = None,
    tell: Callable[[str], None] = lambda words: None,
    progress: Progress = quiet,
) -> Summary:
    """Compute roll-ups for spans of ``seconds``, replacing earlier ones.

    Starts at ``from_at``, by default at the first span that changed since the last run; with
    ``every``, at the first message. Spark counts the spans that ``lake`` has completely, and the
    database counts the rest. Roll-ups outlive their messages: after a removal, a queue keeps its
    roll-ups of spans that are no longer complete. Without a lake, ``spark`` may be None.

    >>> print(rollup(spark, url))
    48 roll-ups computed, from 2026-11-19 00:00 to 2026-11-21 00:00; 0 empty ones deleted; 1.4 s.

    Raises ServerChanged, and InvalidOption for a lake that does not have every queue.
    """
    started = time.monotonic()
    lake = None if lake is None else address(lake)
    with in_database.one_snapshot(url) as connections:
        connection = connections[0]
        server = database.server(connection)
        database.check_server(connection, server)
        # The clock is read after the snapshot, so nothing in the snapshot is later.
        [(at,)] = connection.execute("SELECT clock_timestamp()")
        now, last = _Run(server.now.xmin, at, server.system), _last(connection, seconds)
        reached = bucket_of((last or now).at.timestamp(), seconds)
        start = _start(connection, server, seconds, from_at, reached, None if every else last)
        end = bucket_of((to_at or now.at).timestamp(), seconds)
        if to_at is None or to_at.timestamp() > end:
            end += seconds
        since = f"{moment(start):%Y-%m-%d %H:%M}" if start else "the first message"
        tell(f"Computing the spans from {since} on")
        figures = Figures(seconds, start, end)
        if start < reached:
            figures.leave_out(in_database.removed(connection), reached)
        kept = start if lake is None else _kept_in(connection, server, lake, figures)
        in_database.count_live(connection, figures)
        first_xid = _first_xid(connection, server.system, moment(kept))
        in_database.count_archived(
            connections, figures, kept, first_xid, partial(progress, "queues")
        )
    if lake is not None and kept > start:
        tell(f"Counting the spans before {moment(kept):%Y-%m-%d %H:%M} in the lake {lake}")
        in_lake.count_in_lake(spark, lake, figures, kept)
    rows = figures.all()
    first = moment(start or min((bucket for _, bucket in rows), default=end))
    with database.connect(url) as connection:
        removed = _save(connection, rows, figures, now, first)
    return Summary(first, moment(end), len(rows), removed, time.monotonic() - started)


@dataclass(frozen=True)
class _Run:
    """A run's limit: it saw all transactions below ``below_xid``, which had ended before ``at``."""

    below_xid: int
    at: dt.datetime
    system: str


def _last(connection: psycopg.Connection[Any], seconds: int) -> _Run | None:
    row = connection.execute(
        "SELECT below_xid, started_at, system FROM pgqueue_rollup_run WHERE seconds = %s "
        "ORDER BY id DESC LIMIT 1",
        [seconds],
    ).fetchone()
    return None if row is None else _Run(*row)


def _start(
    connection: psycopg.Connection[Any],
    server: database.Server,
    seconds: int,
    from_at: dt.datetime | None,
    reached: int,
    last: _Run | None,
) -> int:
    """Return the start of the first span to compute: the span of ``from_at``, if given.

    Without a last run, returns 0 for all spans.

    Raises ServerChanged if the last run is from another server, or ahead of this server.
    """
    if from_at is not None:
        return bucket_of(from_at.timestamp(), seconds)
    if last is None:
        return 0
    if last.system != server.system or last.below_xid > server.now.xmax:
        raise ServerChanged(
            "The last roll-up was computed on another server, or this server was restored to an "
            "earlier state since then. So it is unknown which spans changed: recompute every span "
            "(--every)."
        )
    changed = in_database.first_bucket(connection, seconds, last.below_xid, last.at)
    return reached if changed is None else min(changed, reached)


def _first_xid(connection: psycopg.Connection[Any], system: str, at: dt.datetime) -> int:
    """Return a lower bound for the transactions that archived messages at or after a time.

    An earlier run saw every transaction below its limit, so these had archived their messages
    before that run's time.
    """
    [(xid,)] = connection.execute(
        """
        SELECT coalesce(max(xid), 0) FROM (
            SELECT max(below_xid) FROM pgqueue_rollup_run
            WHERE started_at <= %(at)s AND system = %(system)s
            UNION ALL
            SELECT max(r.to_xid) FROM pgqueue_export_run r JOIN pgqueue_lake l ON l.id = r.lake_id
            WHERE r.started_at <= %(at)s AND l.system = %(system)s
        ) AS seen (xid)
        """,
        {"at": at, "system": system},
    )
    return int(xid)


def _kept_in(
    connection: psycopg.Connection[Any], server: database.Server, path: str, figures: Figures
) -> int:
    """Return the first span of the figures that the lake does not have completely."""
    lake = runs.known(connection, path)
    if lake.queues:
        raise InvalidOption(
            f"The lake {path} has only the queues {', '.join(lake.queues)}. A roll-up needs a lake "
            f"with all queues: leave --lake out, or export all queues to another path."
        )
    lake.check_server(server)
    [(first,)] = connection.execute(
        "SELECT extract(epoch FROM min(archived_at))::bigint FROM pgqueue_archive "
        "WHERE archive_xid >= %s",
        [lake.exported_below],
    )
    kept = figures.end if first is None else bucket_of(first, figures.seconds)
    return min(max(kept, figures.start), figures.end)


def _save(
    connection: psycopg.Connection[Any],
    rows: dict[Key, dict[str, Any]],
    figures: Figures,
    now: _Run,
    first: dt.datetime,
) -> int:
    """Replace these spans' roll-ups in one transaction. Returns how many were deleted as empty."""
    seconds, start, end = figures.seconds, figures.start, figures.end
    whole = [moment(bucket) for bucket in figures.whole.values()]
    names = list(COLUMNS)
    # Parameters are scalars: lists and dicts become JSON text, None becomes NULL.
    values = [
        [queue, seconds, moment(bucket), *(_value(found.get(n, COLUMNS[n])) for n in names)]
        for (queue, bucket), found in rows.items()
    ]
    updates = ", ".join(f"{name} = excluded.{name}" for name in names)
    places = ", ".join(["%s"] * (3 + len(names)))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('pgqueue rollup'), %s)", [seconds])
        cursor.executemany(
            f"INSERT INTO pgqueue_rollup (queue_name, seconds, bucket, {', '.join(names)}, "
            f"computed_at) VALUES ({places}, now()) "
            f"ON CONFLICT (queue_name, seconds, bucket) DO UPDATE SET {updates}, "
            f"computed_at = excluded.computed_at",
            values,
        )
        removed = cursor.execute(
            "DELETE FROM pgqueue_rollup r WHERE seconds = %s AND bucket >= %s AND bucket < %s "
            "AND computed_at < now() AND NOT EXISTS ("
            "SELECT FROM unnest(%s::text[], %s::timestamptz[]) AS kept (queue_name, below) "
            "WHERE kept.queue_name = r.queue_name AND r.bucket < kept.below)",
            [seconds, moment(start), moment(end), list(figures.whole), whole],
        ).rowcount
        cursor.execute(
            "INSERT INTO pgqueue_rollup_run "
            "(seconds, from_at, to_at, buckets, removed, below_xid, started_at, system) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            [seconds, first, moment(end), len(rows), removed, now.below_xid, now.at, now.system],
        )
    return removed


def _value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value
