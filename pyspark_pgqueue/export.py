"""The export job: appends newly archived messages to a Parquet lake.

A run exports a span of transactions: from the end of the last run up to the oldest transaction
still open, below which nothing can appear any more. The database records the span before the run
starts. A run that dies is repeated over the same span; one that dies while publishing is finished.
Every message is in the lake exactly once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from pyspark_pgqueue import arrow, executors, iceberg, lake, planning
from pyspark_pgqueue.columns import ARCHIVE
from pyspark_pgqueue.errors import InvalidOption, JobRunning, ServerChanged
from pyspark_pgqueue.offsets import EARLIEST, Offset, Snapshot
from pyspark_pgqueue.options import ROWS_PER_TASK, Options
from pyspark_pgqueue.progress import Progress, interrupts_held, quiet
from pyspark_pgqueue.stores import File, address, open_at

__all__ = ["Summary", "export"]

NAMES = tuple(ARCHIVE)
LOCK = "pgqueue export"


@dataclass(frozen=True)
class Summary:
    """The result of an export."""

    run: int | None
    rows: int = 0
    files: int = 0
    bytes: int = 0
    compacted: int = 0
    seconds: float = 0.0
    resumed: bool = False

    def __str__(self) -> str:
        if self.run is None:
            done = "Nothing new to export"
        else:
            done = (
                f"Run {self.run}{' (resumed)' if self.resumed else ''}: {self.rows:,} messages "
                f"in {self.files} files, {self.bytes / 1e6:.1f} MB"
            )
        merged = f"; {self.compacted} directories compacted" if self.compacted else ""
        return f"{done}{merged}, {self.seconds:.1f} s."


@dataclass(frozen=True)
class Run:
    """A row of pgqueue_export_run: a lake, and the span to export to it."""

    id: int
    lake: int
    path: str
    from_xid: int
    to_xid: int
    resumed: bool


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
    rows_per_task: int = ROWS_PER_TASK,
    tell: Callable[[str], None] = lambda words: None,
    progress: Progress = quiet,
) -> Summary:
    """Export the messages archived since the last export.

    ``queues`` selects the queues of a new lake. ``holds_retention`` makes retention wait for this
    lake. Directories with more than ``max_files`` files are compacted afterwards. ``anew`` first
    deletes the lake with its files, and then exports everything in the database. ``table`` turns
    the lake into an Iceberg table of this name, as in ``shop.archive``.

    >>> print(export(spark, url, "/lake"))
    Run 1: 1,000,000 messages in 12 files, 43.0 MB, 4.1 s.

    If interrupted before publishing, it leaves nothing in the lake, and the next call repeats the
    span. An interruption during publishing takes effect afterwards.

    Raises JobRunning when the lake is being exported to, and ServerChanged.
    """
    started = time.monotonic()
    path = address(path)
    open_at(path)  # raises if the address is invalid
    if table:
        iceberg.check(table)
    executors.check(spark, path)
    with planning.connect(url) as connection:
        if anew:
            _delete_lake(connection, path)
        number, table = _open_lake(connection, path, list(queues), holds_retention, table)
        with _locked(connection, number, path):
            _finish_publishing(connection, number, path, tell)
            lake.sweep(path)
            options = replace(
                Options.parse({"url": url}),
                subscribe=tuple(_queues_of(connection, number)),
                rows_per_partition=rows_per_task,
            )
            run = _unfinished(connection, number, path) or _begin(connection, options, number, path)
            summary = Summary(None)
            if run is not None:
                summary = _export_run(spark, connection, options, run, tell, progress)
            compacted = _compact(spark, connection, number, path, max_files, tell, progress)
            if table and summary.run is None and not compacted:
                iceberg.register(path, table)  # the lake has just become a table
    return replace(summary, compacted=compacted, seconds=time.monotonic() - started)


def _open_lake(
    connection: psycopg.Connection[Any],
    path: str,
    queues: list[str],
    holds: bool | None,
    table: str,
) -> tuple[int, str]:
    """The lake's number and its Iceberg table; registers a new lake."""
    server = planning.server(connection)
    known = connection.execute("SELECT 1 FROM pgqueue_lake WHERE path = %s", [path]).fetchone()
    if known is None and lake.files_in(path):
        raise InvalidOption(
            f"{path} has files of a lake that this database does not know, so messages would be "
            f"duplicated. Export to an empty path, or delete these files (--anew does)."
        )
    row = connection.execute(
        "INSERT INTO pgqueue_lake "
        "(path, queues, holds_retention, exported_below, system, iceberg) "
        "VALUES (%(path)s, %(queues)s, coalesce(%(holds)s, false), 0, %(system)s, %(table)s) "
        "ON CONFLICT (path) DO UPDATE SET "
        "holds_retention = coalesce(%(holds)s, pgqueue_lake.holds_retention), "
        "iceberg = coalesce(nullif(pgqueue_lake.iceberg, ''), excluded.iceberg) "
        "RETURNING id, queues, system, exported_below, iceberg",
        {
            "path": path,
            "queues": json.dumps(queues),
            "holds": holds,
            "system": server.system,
            "table": table,
        },
    ).fetchone()
    assert row is not None
    number, chosen, system, exported_below, registered = row
    if table and table != registered:
        raise InvalidOption(
            f"The lake {path} is already the table {registered}. Leave the table out, or delete "
            f"the lake and export it again (--anew)."
        )
    if queues and sorted(queues) != sorted(chosen):
        raise InvalidOption(
            f"The lake {path} contains {', '.join(chosen) or 'every queue'}: with other queues, "
            f"their earlier messages would be missing. Export to another path."
        )
    if system != server.system or exported_below > server.now.xmax:
        raise ServerChanged(
            f"The lake {path} was exported from another server, or from a later state of this "
            f"one, with other transaction numbers. Export to another path, or delete the lake's "
            f"files and export the database again (--anew)."
        )
    planning.check_server(connection, server)
    return int(number), str(registered)


def _delete_lake(connection: psycopg.Connection[Any], path: str) -> None:
    """Delete a lake's files, and its rows and runs in the database."""
    row = connection.execute(
        "SELECT id, iceberg FROM pgqueue_lake WHERE path = %s", [path]
    ).fetchone()
    number, table = row or (0, "")
    with _locked(connection, number, path):
        if table:
            iceberg.drop(table)
        connection.execute("DELETE FROM pgqueue_lake WHERE id = %s", [number])
        lake.delete(path)


def _queues_of(connection: psycopg.Connection[Any], number: int) -> list[str]:
    row = connection.execute("SELECT queues FROM pgqueue_lake WHERE id = %s", [number]).fetchone()
    assert row is not None
    return [str(name) for name in row[0]]


@contextmanager
def _locked(connection: psycopg.Connection[Any], number: int, path: str) -> Iterator[None]:
    """Allow one export per lake at a time. The lock ends with the process."""
    row = connection.execute(
        "SELECT pg_try_advisory_lock(hashtext(%s), %s)", [LOCK, number]
    ).fetchone()
    if row != (True,):
        raise JobRunning(f"Another process is exporting to {path}. Wait for it, or stop it.")
    try:
        yield
    finally:
        # Unlocked explicitly: the server may notice the closed connection only after the next
        # export starts.
        with suppress(psycopg.Error):
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s), %s)", [LOCK, number])


def _unfinished(connection: psycopg.Connection[Any], number: int, path: str) -> Run | None:
    row = connection.execute(
        "SELECT id, from_xid, to_xid FROM pgqueue_export_run "
        "WHERE lake_id = %s AND state = 'RUNNING' AND kind = 'EXPORT'",
        [number],
    ).fetchone()
    if row is None:
        return None
    return Run(row[0], number, path, row[1], row[2], resumed=True)


def _begin(
    connection: psycopg.Connection[Any], options: Options, number: int, path: str
) -> Run | None:
    """Record the span of a new run. Returns None if the span is empty."""
    row = connection.execute(
        "SELECT exported_below FROM pgqueue_lake WHERE id = %s", [number]
    ).fetchone()
    assert row is not None
    low, high = row[0], planning.server(connection).now.xmin
    if high <= low:
        return None
    condition = planning.in_window(
        options,
        planning.queues(connection, options),
        Offset(Snapshot.below(low)),
        Offset(Snapshot.below(high)),
    )
    found = connection.execute(
        f"SELECT 1 FROM pgqueue_archive a WHERE {condition} LIMIT 1"
    ).fetchone()
    if found is None:
        connection.execute(
            "UPDATE pgqueue_lake SET exported_below = %s WHERE id = %s", [high, number]
        )
        return None
    return Run(_note(connection, number, "EXPORT", low, high), number, path, low, high, False)


def _note(
    connection: psycopg.Connection[Any], number: int, kind: str, low: int = 0, high: int = 0
) -> int:
    row = connection.execute(
        "INSERT INTO pgqueue_export_run "
        "(lake_id, kind, state, from_xid, to_xid, rows, files, bytes, manifest, error) "
        "VALUES (%s, %s, 'RUNNING', %s, %s, 0, 0, 0, '{}', '') RETURNING id",
        [number, kind, low, high],
    ).fetchone()
    assert row is not None
    return int(row[0])


def _export_run(
    spark: Any,
    connection: psycopg.Connection[Any],
    options: Options,
    run: Run,
    tell: Callable[[str], None],
    progress: Progress,
) -> Summary:
    start, end = Offset(Snapshot.below(run.from_xid)), Offset(Snapshot.below(run.to_xid))
    chosen = planning.queues(connection, options)
    planned = planning.marks(connection, options, chosen)
    if run.from_xid == 0:
        tasks = planning.cut_by_position(connection, options, NAMES, start=start, end=end)
    else:
        # New rows are few, so they are found by transaction and not by reading the whole table.
        tasks = planning.cut_by_transaction(connection, options, NAMES, start, end)
    tell(f"Run {run.id}: {len(tasks)} tasks")
    url, path, number = options.url, run.path, run.id

    def write(place: int, task: planning.Task) -> list[File]:
        return lake.write(path, number, place, arrow.batches(url, task))

    try:
        parts = executors.on_executors(spark, write, tasks, progress)
    except Exception as error:
        connection.execute(
            "UPDATE pgqueue_export_run SET error = %s WHERE id = %s", [str(error)[:2000], run.id]
        )
        raise
    written = [file for files in parts for file in files]
    for name in _lacking(start, planned, planning.marks(connection, options, chosen)):
        tell(
            f"Run {run.id} lacks messages of queue {name!r}: they were purged, or the queue was "
            f"dropped, before they were exported. --hold-retention makes retention wait."
        )
    tell(f"Run {run.id}: publishing {len(written)} files")
    _publish(connection, run.id, run.path, written, [])
    rows, size = sum(f["rows"] for f in written), sum(f["bytes"] for f in written)
    return Summary(run.id, rows, len(written), size, resumed=run.resumed)


def _lacking(
    start: Offset, planned: Sequence[planning.Mark], now: Sequence[planning.Mark]
) -> list[str]:
    """Queues whose messages after the start were removed before a task read them."""
    known = {mark.queue_id: mark.version for mark in planned}
    return sorted(
        mark.queue
        for mark in now
        if (
            known.get(mark.queue_id) != mark.version
            if start.since == EARLIEST
            else start.may_lack(mark.below_xid)
        )
    )


def _publish(
    connection: psycopg.Connection[Any],
    run: int,
    path: str,
    add: list[File],
    remove: list[str],
) -> None:
    """Publish the files. From here on the run can only be finished, not repeated."""
    by_queue: Counter[str] = Counter()
    for file in add:
        by_queue[file["to"].partition("queue=")[2].partition("/")[0]] += file["rows"]
    manifest = {"add": add, "remove": remove, "queues": dict(by_queue)}
    with interrupts_held():
        connection.execute(
            "UPDATE pgqueue_export_run SET state = 'PUBLISHING', manifest = %s, error = '', "
            "rows = %s, files = %s, bytes = %s WHERE id = %s",
            [
                json.dumps(manifest),
                sum(f["rows"] for f in add),
                len(add),
                sum(f["bytes"] for f in add),
                run,
            ],
        )
        _finish(connection, run, path, manifest)


def _finish(
    connection: psycopg.Connection[Any], run: int, path: str, manifest: dict[str, Any]
) -> None:
    lake.publish(path, manifest["add"])
    # Readers of the table see complete runs only: it gets the new files before the old ones are
    # deleted.
    if table := _table_of(connection, run):
        iceberg.register(path, table, set(manifest["remove"]))
    lake.remove(path, manifest["remove"])
    with connection.transaction():
        row = connection.execute(
            "UPDATE pgqueue_export_run SET state = 'DONE', finished_at = clock_timestamp() "
            "WHERE id = %s RETURNING kind, to_xid, lake_id",
            [run],
        ).fetchone()
        assert row is not None
        if row[0] == "EXPORT":
            connection.execute(
                "UPDATE pgqueue_lake SET exported_below = %s WHERE id = %s", [row[1], row[2]]
            )
    lake.sweep(path)


def _table_of(connection: psycopg.Connection[Any], run: int) -> str:
    row = connection.execute(
        "SELECT l.iceberg FROM pgqueue_lake l JOIN pgqueue_export_run r ON r.lake_id = l.id "
        "WHERE r.id = %s",
        [run],
    ).fetchone()
    return str(row[0]) if row else ""


def _finish_publishing(
    connection: psycopg.Connection[Any], number: int, path: str, tell: Callable[[str], None]
) -> None:
    """Finish publishing for a process that died, and discard its compaction."""
    for run, kind, state, manifest in connection.execute(
        "SELECT id, kind, state, manifest FROM pgqueue_export_run "
        "WHERE lake_id = %s AND state <> 'DONE'",
        [number],
    ).fetchall():
        if state == "PUBLISHING":
            tell(f"Run {run}: finishing an interrupted run")
            with interrupts_held():
                _finish(connection, run, path, manifest)
        elif kind == "COMPACT":
            connection.execute("DELETE FROM pgqueue_export_run WHERE id = %s", [run])


def _compact(
    spark: Any,
    connection: psycopg.Connection[Any],
    number: int,
    path: str,
    max_files: int,
    tell: Callable[[str], None],
    progress: Progress,
) -> int:
    """Merge the files of each directory that has too many."""
    crowded = [places for places in lake.files_in(path).values() if len(places) > max_files]
    if not crowded:
        return 0
    run = _note(connection, number, "COMPACT")
    tell(f"Run {run}: compacting {len(crowded)} directories")

    def merge(place: int, places: list[str]) -> list[File]:
        return lake.merge(path, run, place, places)

    parts = executors.on_executors(spark, merge, crowded, progress)
    written = [file for files in parts for file in files]
    _publish(connection, run, path, written, [place for places in crowded for place in places])
    return len(crowded)
