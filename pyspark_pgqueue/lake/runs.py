"""Lakes and export runs in the database.

A run is a row of ``pgqueue_export_run``, recorded before its first file is written. It is RUNNING
until the names of its files are recorded, and PUBLISHING until the files are visible. A run that
fails while RUNNING has published nothing: the next run exports its messages. A run that dies while
publishing is finished by the next export.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import psycopg

from pyspark_pgqueue.errors import InvalidOption, JobRunning, ServerChanged, in_one_line
from pyspark_pgqueue.lake.stores import File, key_of
from pyspark_pgqueue.source import database
from pyspark_pgqueue.source.offsets import Offset
from pyspark_pgqueue.source.options import Options

#: First key of a lake's advisory lock; the second is its path. Also in maintenance/lakes.sql.
LOCK = "pgqueue export"
_MOST_OF_AN_ERROR = 20_000


@dataclass(frozen=True)
class Lake:
    """A row of pgqueue_lake."""

    id: int
    path: str
    queues: tuple[str, ...]  # empty: every queue
    exported_below: int
    table: str  # empty: no Iceberg table
    body_schemas: dict[str, Any]
    system: str

    def has(self, queue: str) -> bool:
        return not self.queues or queue.lower() in map(str.lower, self.queues)

    def check_server(self, server: database.Server) -> None:
        """Refuse a lake of another server, or of a later state of this one."""
        if self.system != server.system or self.exported_below > server.now.xmax:
            raise ServerChanged(
                f"The lake {self.path} was exported from another server, or this server was "
                f"restored to an earlier state. Use another path, or delete the lake's files and "
                f"export the database again (export --anew)."
            )


_COLUMNS = "id, path, queues, exported_below, iceberg, body_schemas, system"


def known(connection: psycopg.Connection[Any], path: str) -> Lake:
    """Return the lake at a path. Raises InvalidOption if nothing was exported there."""
    text = f"SELECT {_COLUMNS} FROM pgqueue_lake WHERE path = %s AND exported_below > 0"
    row = connection.execute(text, [path]).fetchone()
    if row is None:
        raise InvalidOption(
            f"Nothing was exported to {path} yet. Export first, or correct the path."
        )
    return Lake(*row)


@dataclass(frozen=True)
class Manifest:
    """The changes to a lake's files when a run is published."""

    add: list[File]
    #: Files whose rows are also in ``add``, which replaces them in the Iceberg table.
    remove: list[str] = field(default_factory=list)
    #: Files to delete.
    delete: list[str] = field(default_factory=list)
    #: By queue: the lake may lack messages of this run's transactions below this one.
    lacks: dict[str, int] = field(default_factory=dict)

    @property
    def misfits(self) -> int:
        """The number of bodies with values that do not fit their columns."""
        return sum(file.get("corrupt", 0) for file in self.add)

    def as_dict(self) -> dict[str, Any]:
        by_queue: Counter[str] = Counter()
        for file in self.add:
            by_queue[key_of(file["to"], "queue")] += file["rows"]
        typed = sum(file.get("typed", 0) for file in self.add)
        counts = {"queues": dict(by_queue), "misfits": self.misfits, "typed": typed}
        return {**self.__dict__, **counts}


@contextmanager
def locked(connection: psycopg.Connection[Any], path: str) -> Iterator[None]:
    """Allow one export per lake at a time. The lock ends with the process."""
    given = [LOCK, path]
    taken = "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))"
    if connection.execute(taken, given).fetchone() != (True,):
        raise JobRunning(f"Another process is exporting to {path}. Wait for it, or stop it.")
    try:
        yield
    finally:
        # Unlocked explicitly: the server may notice the closed connection only after the next
        # export starts.
        with suppress(psycopg.Error):
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s), hashtext(%s))", given)


@contextmanager
def recorded(
    connection: psycopg.Connection[Any], path: str, queues: Sequence[str]
) -> Iterator[None]:
    """Record an error of the block in the lake's unfinished run, or add a failed run for it.

    The caller holds the lake's lock. Registers a new lake, so that its failed run is seen; but not
    one with a mistake in its options.
    """
    try:
        yield
    except BaseException as error:
        told = f"{in_one_line(error)}\n{traceback.format_exc()}"
        # A lost connection leaves the run unchanged. Without a session that holds the lock, the run
        # counts as dead.
        with suppress(psycopg.Error):
            # An interrupt adds no failed run: a delayed one arrives after the run has ended.
            anew = not isinstance(error, KeyboardInterrupt)
            given = {"path": path, "error": told[:_MOST_OF_AN_ERROR], "anew": anew}
            if anew and not isinstance(error, InvalidOption):
                _register(connection, path, queues, database.server(connection).system)
            connection.execute(database.sql("lake/runs/fail"), given)
        raise


def _register(
    connection: psycopg.Connection[Any],
    path: str,
    queues: Sequence[str],
    system: str,
    holds: bool | None = None,
    table: str = "",
) -> Lake:
    """Return the lake at a path, which is registered if it is new. Other settings change it."""
    row = connection.execute(
        database.sql(
            "lake/runs/register", columns=_COLUMNS, has_files=database.sql("lake/runs/has_files")
        ),
        {
            "path": path,
            "queues": json.dumps(list(queues)),
            "holds": holds,
            "system": system,
            "table": table,
        },
    ).fetchone()
    assert row is not None
    return Lake(*row)


def open_lake(
    connection: psycopg.Connection[Any],
    path: str,
    queues: Sequence[str],
    holds: bool | None,
    table: str,
    has_files: bool,
) -> Lake:
    """Return the lake at a path. Registers a new one. Raises InvalidOption and ServerChanged."""
    server = database.server(connection)
    known = connection.execute(
        f"SELECT iceberg, jsonb_path_exists(body_schemas, '$.*.stale ? (@ == true)') "
        f"FROM pgqueue_lake WHERE path = %s AND {database.sql('lake/runs/has_files')}",
        [path],
    ).fetchone()
    if known is None and has_files:
        raise InvalidOption(
            f"{path} already has files of a lake that is not in this database: messages could be "
            f"duplicated there. Export to an empty path, or pass --anew to delete the files first."
        )
    if table and known == ("", True):
        raise InvalidOption(
            f"The last export to {path} changed a column's type, and was interrupted before it "
            f"wrote older files again. Export once without --table, then with it."
        )
    lake = _register(connection, path, queues, server.system, holds, table)
    if table and table != lake.table:
        raise InvalidOption(
            f"The lake {path} is already the Iceberg table {lake.table}. Leave --table out, or "
            f"delete the lake and export it again (--anew)."
        )
    if queues and sorted(queues) != sorted(lake.queues):
        raise InvalidOption(
            f"The lake {path} contains {', '.join(lake.queues) or 'every queue'}, and this cannot "
            f"be changed: earlier messages of a new queue would be missing. Leave --queue out, or "
            f"export these queues to another path."
        )
    lake.check_server(server)
    database.check_server(connection, server)
    return lake


def delete(connection: psycopg.Connection[Any], path: str) -> str:
    """Delete the rows of a lake and of its runs; returns its Iceberg table."""
    row = connection.execute(
        "DELETE FROM pgqueue_lake WHERE path = %s RETURNING iceberg", [path]
    ).fetchone()
    return str(row[0]) if row else ""


def unfinished(connection: psycopg.Connection[Any], lake: Lake) -> tuple[int, Manifest] | None:
    """Return the id and manifest of a run whose process died while it published. Records any other
    dead run as failed.
    """
    connection.execute(database.sql("lake/runs/died"), [lake.id])
    row = connection.execute(database.sql("lake/runs/unfinished"), [lake.id]).fetchone()
    if row is None:
        return None
    number, manifest = row
    return number, Manifest(manifest["add"], manifest["remove"], manifest["delete"])


def begin(
    connection: psycopg.Connection[Any], lake: Lake, kind: str, low: int = 0, high: int = 0
) -> tuple[int, tuple[int, ...]]:
    """Record a new run. It resumes the lake's failed runs of this kind that no other run resumed.

    Returns the new run's id, and the ids of the resumed runs.
    """
    with connection.transaction():
        given = [lake.id, kind, low, high]
        [(number,)] = connection.execute(database.sql("lake/runs/begin"), given)
        resume = database.sql("lake/runs/resume")
        failed = connection.execute(resume, [number, lake.id, kind]).fetchall()
    return number, tuple(sorted(pk for (pk,) in failed))


def publishing(connection: psycopg.Connection[Any], run: int, manifest: Manifest) -> None:
    """Record the changes that the run publishes. From now on the run can only be finished."""
    add = manifest.add
    rows, size = (sum(file[name] for file in add) for name in ("rows", "bytes"))
    given = [json.dumps(manifest.as_dict()), rows, len(add), size, run]
    connection.execute(database.sql("lake/runs/publishing"), given)


def end(connection: psycopg.Connection[Any], run: int) -> None:
    """Record that the run is published, and how far its lake is exported."""
    with connection.transaction():
        [(kind, below, lake)] = connection.execute(database.sql("lake/runs/done"), [run])
        if kind == "EXPORT":
            exported(connection, lake, below)


def exported(connection: psycopg.Connection[Any], lake: int, below: int) -> None:
    """Record that the lake has all messages of transactions with ids less than ``below``."""
    connection.execute(database.sql("lake/runs/exported"), {"below": below, "lake": lake})


def store_schemas(connection: psycopg.Connection[Any], lake: Lake, schemas: dict[str, Any]) -> Lake:
    """Store the schemas of the queues' bodies with the lake."""
    if schemas != lake.body_schemas:
        connection.execute(
            "UPDATE pgqueue_lake SET body_schemas = %s WHERE id = %s",
            [json.dumps(schemas), lake.id],
        )
    return replace(lake, body_schemas=schemas)


def replaced(connection: psycopg.Connection[Any], lake: Lake) -> set[str]:
    """The files whose rows a compaction wrote to other files."""
    rows = connection.execute(database.sql("lake/runs/replaced"), [lake.id])
    return {place for (place,) in rows}


class Group(NamedTuple):
    """A row group of a lake's file: its first and last transaction, and its number of rows."""

    place: str
    low: int
    high: int
    rows: int


def groups(
    connection: psycopg.Connection[Any], lake: Lake, options: Options, low: int, high: int
) -> list[Group]:
    """Return the row groups that may have selected messages of these transactions, by path."""
    selected = database.SELECTED.format(name="substring(place FROM 'queue=([^/]+)')")
    rows = connection.execute(
        database.sql("lake/runs/groups", selected=selected),
        {"lake": lake.id, "low": low, "high": high, **database.selection(options)},
    )
    return [Group._make(row) for row in rows]


def lacking(
    connection: psycopg.Connection[Any], lake: Lake, options: Options, at: Offset
) -> list[str]:
    """Return the selected queues of which the lake may lack messages that a stream has not read."""
    params = {"lake": lake.id, "low": at.since.xmin, "began": at.lake}
    selected = database.SELECTED.format(name="queue")
    rows = connection.execute(
        database.sql("lake/runs/lacking", selected=selected),
        {**params, **database.selection(options)},
    )
    # Unlike a stream at the start of an archive, one at the start of a lake misses what is lacking.
    return [queue for queue, below in rows if at.past(1).may_lack(below)]
