"""The roll-up job: statistics for each queue, by spans of time.

PostgreSQL counts the messages, in one snapshot, so that each is counted exactly once. Spark is not
needed: it counted the files of a lake no faster, at three and at ten million messages.
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

from pyspark_pgqueue.errors import ServerChanged
from pyspark_pgqueue.jobs.progress import Progress, quiet
from pyspark_pgqueue.rollup import in_database
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
    url: str,
    *,
    seconds: int = HOUR,
    from_at: dt.datetime | None = None,
    to_at: dt.datetime | None = None,
    every: bool = False,
    tell: Callable[[str], None] = lambda words: None,
    progress: Progress = quiet,
) -> Summary:
    """Compute roll-ups for spans of ``seconds``, replacing earlier ones.

    Starts at ``from_at``, by default at the first span that changed since the last run; with
    ``every``, at the first message. Roll-ups outlive their messages: after a removal, a queue keeps
    its roll-ups of spans that are no longer complete.

    >>> print(rollup(url))
    48 roll-ups computed, from 2026-11-19 00:00 to 2026-11-21 00:00; 0 empty ones deleted; 1.4 s.

    Raises ServerChanged.
    """
    started = time.monotonic()
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
        in_database.count_live(connection, figures)
        first_xid = _first_xid(connection, server.system, moment(start))
        in_database.count_archived(
            connections, figures, start, first_xid, partial(progress, "queues")
        )
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
        SELECT coalesce(max(below_xid), 0) FROM pgqueue_rollup_run
        WHERE started_at <= %s AND system = %s
        """,
        [at, system],
    )
    return int(xid)


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
