"""The export job: appends newly archived messages to a Parquet lake.

A run exports the messages of a range of transactions: from the end of the last finished run to the
oldest transaction still open, below which no new rows can appear. The database records each run
(``lake/runs.py``), so that every message is in the lake exactly once, even if a process dies.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from django_pgqueue.engine.interrupts import interrupts_held
from pyspark_pgqueue.jobs import executors
from pyspark_pgqueue.jobs.progress import Progress, quiet
from pyspark_pgqueue.lake import body_columns, files, iceberg, runs
from pyspark_pgqueue.lake.runs import Lake, Manifest
from pyspark_pgqueue.lake.stores import File, address, key_of, open_at
from pyspark_pgqueue.source import arrow, database, planning, purges
from pyspark_pgqueue.source.columns import ARCHIVE
from pyspark_pgqueue.source.offsets import Offset, Snapshot
from pyspark_pgqueue.source.options import ROWS_PER_TASK, Options

NAMES = tuple(ARCHIVE)


@dataclass(frozen=True)
class Summary:
    """The result of an export."""

    run: int | None
    rows: int = 0
    files: int = 0
    bytes: int = 0
    compacted: int = 0
    seconds: float = 0.0
    #: The failed runs whose messages this run exported.
    resumed: tuple[int, ...] = ()
    #: Number of bodies with values that do not fit their columns.
    misfits: int = 0

    def __str__(self) -> str:
        if self.run is None:
            done = "Nothing new to export"
        else:
            failed = ", ".join(map(str, self.resumed))
            resumed = f" (replaces failed run {failed})" if self.resumed else ""
            done = (
                f"Run {self.run}{resumed}: {self.rows:,} messages in {self.files} files, "
                f"{self.bytes / 1e6:.1f} MB"
            )
        misfits = f"; {self.misfits:,} bodies do not fit their columns" if self.misfits else ""
        merged = f"; {self.compacted} directories compacted" if self.compacted else ""
        return f"{done}{misfits}{merged}, {self.seconds:.1f} s."


def export(
    spark: Any,
    url: str,
    path: str,
    *,
    queues: Sequence[str] = (),
    holds_retention: bool | None = None,
    max_files: int = 32,
    anew: bool = False,
    table: str = "",
    expire_snapshots: dt.timedelta | None = None,
    body_schemas: Mapping[str, str] | None = None,
    rows_per_task: int = ROWS_PER_TASK,
    tell: Callable[[str], None] = lambda words: None,
    progress: Progress = quiet,
) -> Summary:
    """Export the messages archived since the last export.

    Arguments:
        queues: the queues of a new lake; empty: all.
        holds_retention: whether retention waits for this lake; None: as before.
        max_files: directories with more files are compacted afterwards.
        anew: delete the lake with its files, and export everything in the database.
        table: turn the lake into an Iceberg table of this name, as in ``shop.archive``.
        expire_snapshots: the table's snapshots older than this expire; None: no snapshot does.
        body_schemas: the fields of bodies that become columns, by queue. Each is DDL, ``evolve`` or
            ``none`` (``lake/body_columns.py``).
        tell: called with each notice.

    >>> print(export(spark, url, "/lake"))
    Run 1: 1,000,000 messages in 12 files, 43.0 MB, 4.1 s.

    An export that is interrupted before it publishes leaves nothing in the lake. An interruption
    during publishing takes effect afterwards.

    Raises InvalidOption, StoreFailed, ServerChanged, and JobRunning if another process exports to
    the lake.
    """
    started, path = time.monotonic(), address(path)
    with (
        database.connect(url) as connection,
        runs.locked(connection, path),
        runs.recorded(connection, path, queues),
    ):
        # Checked before anything is recorded or deleted.
        files.check(path)
        if table:
            iceberg.check(table)
        executors.check(spark, path)
        if anew:
            if former := runs.delete(connection, path):
                iceberg.drop(former)
            files.delete(path)
        lake = _opened(connection, path, queues, holds_retention, table, tell)
        files.sweep(path)
        # Removed messages are no error: the run reports their queues.
        options = Options.parse({"url": url, "failOnDataLoss": "false"})
        options = replace(options, subscribe=lake.queues, rows_per_partition=rows_per_task)
        span = lake.exported_below, database.server(connection).now.xmin
        schemas = body_columns.declare(connection, options, lake, body_schemas or {}, span)
        lake = runs.store_schemas(connection, lake, schemas)
        job = _Job(spark, connection, options, tell, progress)
        summary, lake = _export_run(job, lake, *span)
        compacted = _compact(job, lake, max_files, expire_snapshots)
        if table and summary.run is None and not compacted:
            _register(connection, lake)  # the lake has just become a table
    return replace(summary, compacted=compacted, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class _Job:
    """The parts of an export that do not change while it runs."""

    spark: Any
    connection: psycopg.Connection[Any]
    options: Options
    tell: Callable[[str], None]
    progress: Progress


def _opened(
    connection: psycopg.Connection[Any],
    path: str,
    queues: Sequence[str],
    holds_retention: bool | None,
    table: str,
    tell: Callable[[str], None],
) -> Lake:
    """Open the lake. Finishes a run whose process died while it published."""
    asked = (queues, holds_retention, table, bool(files.files_in(path)))
    lake = runs.open_lake(connection, path, *asked)
    if (dead := runs.unfinished(connection, lake)) is None:
        return lake
    run, manifest = dead
    tell(f"Run {run} was interrupted while it published: finishing it")
    with interrupts_held():
        _finish(connection, lake, run, manifest)
    return runs.open_lake(connection, path, *asked)


def _export_run(job: _Job, lake: Lake, low: int, high: int) -> tuple[Summary, Lake]:
    """Export the messages that a span of transactions archived, if any.

    Returns the lake with the schemas that grew with the messages' bodies.
    """
    connection, options = job.connection, job.options
    start, end = Offset(Snapshot.below(low)), Offset(Snapshot.below(high))
    chosen = database.queues(connection, options, may_be_dropped=True)
    condition = planning.in_window(options, chosen, start, end)
    found = connection.execute(f"SELECT FROM pgqueue_archive a WHERE {condition} LIMIT 1")
    planned = purges.marks(connection, options, chosen)
    # The first run exports the messages that earlier purges left. Only later purges are losses.
    guard = purges.Guard((), start, tuple(planned) if low == 0 else None)
    is_complete = not (guard.lost(planned) if low else planned)
    if high <= low or (found.fetchone() is None and is_complete):
        runs.exported(connection, lake.id, max(low, high))
        return Summary(None), lake
    run, resumed = runs.begin(connection, lake, "EXPORT", low, high)
    if low == 0:
        tasks = planning.cut_by_position(connection, options, NAMES, chosen, start=start, end=end)
    else:
        # New rows are few, so they are found by transaction and not by reading the whole table.
        tasks = planning.cut_by_transaction(connection, options, NAMES, chosen, start, end)
    job.tell(f"Run {run}: exporting in {len(tasks)} tasks")
    written, notices, lake = _written(job, lake, run, tasks)
    marks = purges.marks(connection, options, chosen)
    lost = guard.lost(marks)
    notices += [
        f"lacks messages of queue {name!r}: they were purged, or the queue was dropped, before the "
        f"export. Pass --hold-retention to make retention wait for exports."
        for name in sorted(mark.queue for mark in lost)
    ]
    for notice in [*notices, *body_columns.misfits(written)]:
        job.tell(f"Run {run}: {notice}")
    job.tell(f"Run {run}: publishing {len(written)} files")
    manifest = Manifest(written, lacks=_lacks(lost if low else marks, high))
    _publish(connection, lake, run, manifest)
    rows, size = sum(f["rows"] for f in written), sum(f["bytes"] for f in written)
    done = Summary(run, rows, len(written), size, resumed=resumed, misfits=manifest.misfits)
    return done, lake


def _written(
    job: _Job, lake: Lake, run: int, tasks: Sequence[planning.Task]
) -> tuple[list[File], list[str], Lake]:
    """Write the rows of a run, again for as long as their bodies have new fields or types.

    Returns the files, notices, and the lake with its new schemas.
    """
    url, path = job.options.url, lake.path
    while True:
        schemas = lake.body_schemas

        def write(place: int, task: planning.Task, schemas: Any = schemas) -> list[File]:
            return files.write(path, run, place, arrow.batches(url, task), schemas=schemas)

        parts = executors.on_executors(job.spark, write, tasks, job.progress)
        written = [file for part in parts for file in part]
        grown, notices = body_columns.grown(lake, written)
        lake = runs.store_schemas(job.connection, lake, grown)
        if grown == schemas:
            return written, notices, lake
        job.tell(f"Run {run}: bodies have new fields or types, so it is written again with them")
        files.sweep(path)


def _lacks(marks: Iterable[purges.Mark], high: int) -> dict[str, int]:
    """By queue: the transaction below which a run up to ``high`` lacks messages."""
    # Of two marks of a name, the last one counts.
    ordered = sorted(marks, key=lambda mark: mark.below_xid)
    return {mark.queue: min(mark.below_xid, high) for mark in ordered}


def _publish(connection: psycopg.Connection[Any], lake: Lake, run: int, manifest: Manifest) -> None:
    with interrupts_held():
        runs.publishing(connection, run, manifest)
        _finish(connection, lake, run, manifest)


def _finish(connection: psycopg.Connection[Any], lake: Lake, run: int, manifest: Manifest) -> None:
    files.publish(lake.path, manifest.add)
    # The table gets the new files before the old ones are deleted, so its readers miss no rows.
    if lake.table:
        _register(connection, lake)
    open_at(lake.path).remove(manifest.delete)
    runs.end(connection, run)
    files.sweep(lake.path)


def _register(connection: psycopg.Connection[Any], lake: Lake) -> None:
    schema = body_columns.arrow_fields(lake.body_schemas)
    iceberg.register(lake.path, lake.table, schema, runs.replaced(connection, lake))


def _compact(job: _Job, lake: Lake, max_files: int, expire: dt.timedelta | None) -> int:
    """Merge the files of each directory that has too many, or columns of a former type."""
    schemas = lake.body_schemas
    stale = {queue for queue, schema in schemas.items() if schema["stale"]}
    if lake.table:
        merges = iceberg.merges(lake.path, lake.table, max_files, expire)
    else:
        merges = [
            files.Merge(places, delete=places, anew=key_of(places[0], "queue") in stale)
            for places in files.files_in(lake.path).values()
            if len(places) > max_files or key_of(places[0], "queue") in stale
        ]
    if not merges:
        return 0
    run, _ = runs.begin(job.connection, lake, "COMPACT")
    job.tell(f"Run {run}: compacting {len(merges)} directories")
    path = lake.path

    def merge(place: int, task: files.Merge) -> list[File]:
        return files.merge(path, run, place, task, schemas)

    parts = executors.on_executors(job.spark, merge, merges, job.progress)
    manifest = Manifest(
        [file for part in parts for file in part],
        remove=[place for each in merges for place in each.places],
        delete=[place for each in merges for place in each.delete],
    )
    _publish(job.connection, lake, run, manifest)
    if stale:
        runs.store_schemas(job.connection, lake, body_columns.compacted(schemas))
    return len(merges)
