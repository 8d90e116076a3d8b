"""The files of a lake: their paths and contents.

A file's path below the lake's is ``archive/queue=orders/date=2026-11-21/run-7-0-….parquet``, a
layout that DuckDB, Polars, Athena and Spark read. :mod:`.stores` publishes a run's files, and
:mod:`.runs` records their names.

``compacted`` has the same layout, for readers of an Iceberg table: each of its files has the rows
of several files of ``archive`` that earlier snapshots still need (:mod:`.iceberg`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from pyspark_pgqueue.lake import body_columns
from pyspark_pgqueue.lake.stores import STAGING, File, Sink, Store, explained, key_of, open_at
from pyspark_pgqueue.source.columns import ARCHIVE

DATA, COMPACTED = "archive", "compacted"
#: The directory of an Iceberg table's metadata.
METADATA = "metadata"

_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
# Columns that get a dictionary, since their values repeat. In other columns a dictionary would cost
# time and space.
_REPEATED = ["queue", "state", "group_key", "error"]
# Maximum bytes of rows held in memory: for one file, and for all files of a task.
_ROW_GROUP = 16 * 1024 * 1024
_HELD = 32 * 1024 * 1024
# Rows held in memory while files are read or merged.
ROWS_AT_ONCE = 1024


def archive_schema() -> pa.Schema:
    """The columns of a lake's files, without those for the fields of bodies."""
    return pa.schema({name: _TYPES[column.type] for name, column in ARCHIVE.items()})


@dataclass(frozen=True)
class Merge:
    """Files of one directory to merge, the target directory, and the files to delete afterwards."""

    places: Sequence[str]
    to: str = DATA
    delete: Sequence[str] = ()
    #: Whether the columns for fields of bodies are made anew, since their types have changed.
    anew: bool = False


def check(path: str) -> None:
    """Raise StoreFailed or InvalidOption unless files can be written at the path."""
    with explained(path):
        store = open_at(path)
        place = f"{DATA}/check-{uuid.uuid4().hex}"
        store.abandon(place, store.create(place))


def write(
    path: str,
    run: int,
    number: int,
    batches: Iterable[pa.RecordBatch],
    *,
    to: str = DATA,
    schemas: Mapping[str, Any] | None = None,
) -> list[File]:
    """Write one task's rows to unpublished files; returns the files.

    ``schemas`` has, by queue, the fields of bodies that become columns. A file of such a queue has
    the counts of :class:`.body_columns.Typed`, too.
    """
    writing = _Writing(path, run, number, to, schemas or {})
    try:
        for batch in batches:
            writing.add(batch)
        return writing.finish()
    except BaseException:
        writing.abandon()
        raise


class _Writing:
    """Writes one task's files, one per queue and day. Holds at most ``_HELD`` bytes of rows."""

    def __init__(
        self, path: str, run: int, number: int, to: str, schemas: Mapping[str, Any]
    ) -> None:
        self.path, self.directory = path, to
        self.store = open_at(path)
        self.name = f"run-{run}-{number}-{uuid.uuid4().hex[:8]}.parquet"
        self.schemas = schemas
        self.typed: dict[str, body_columns.Typed] = {}
        self.sinks: dict[str, Sink] = {}
        self.writers: dict[str, parquet.ParquetWriter] = {}
        #: By file, each row group's first and last transaction and number of rows.
        self.groups: dict[str, list[tuple[int, int, int]]] = {}
        self.held: dict[str, list[pa.RecordBatch]] = {}
        self.sizes: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        # As text, the days would take most of the time of a file.
        days = batch.column("archived_at").cast(pa.date32())
        queues = batch.column("queue")
        for queue in pc.unique(queues).to_pylist():
            for day in pc.unique(days).to_pylist():
                chosen = pc.and_(pc.equal(queues, queue), pc.equal(days, day))
                rows = batch if pc.all(chosen).as_py() else batch.filter(chosen)
                if rows.num_rows:
                    place = f"{self.directory}/queue={queue}/date={day}/{self.name}"
                    if place not in self.typed and queue in self.schemas:
                        self.typed[place] = body_columns.Typed(self.schemas[queue])
                    if place in self.typed:
                        rows = self.typed[place].add_columns(rows)
                    self._hold(place, rows)

    def _hold(self, place: str, rows: pa.RecordBatch) -> None:
        self.held.setdefault(place, []).append(rows)
        self.sizes[place] += rows.nbytes
        while self.sizes.total() > _HELD or self.sizes[place] > _ROW_GROUP:
            with explained(self.path):
                self._flush(self.sizes.most_common(1)[0][0])

    def _flush(self, place: str) -> None:
        rows = pa.Table.from_batches(self.held.pop(place))
        del self.sizes[place]
        if place not in self.writers:
            self.sinks[place] = self.store.create(place)
            self.writers[place] = parquet.ParquetWriter(
                self.sinks[place],
                rows.schema,
                compression="zstd",
                use_dictionary=_REPEATED,
            )
        self.writers[place].write_table(rows)
        xids = pc.min_max(rows.column("archive_xid")).as_py()
        self.groups.setdefault(place, []).append((xids["min"], xids["max"], rows.num_rows))

    def finish(self) -> list[File]:
        files = []
        with explained(self.path):
            for place in list(self.held):
                self._flush(place)
            for place, sink in sorted(self.sinks.items()):
                self.writers[place].close()
                size = sink.tell()
                sink.close()
                groups = self.groups[place]
                told = {"rows": sum(rows for *_, rows in groups), "bytes": size, "groups": groups}
                if place in self.typed:
                    told |= self.typed[place].told()
                files.append({**self.store.written(place, sink), **told})
        return files

    def abandon(self) -> None:
        for place, sink in self.sinks.items():
            # Further errors are suppressed, so that the first one is raised. A sweep deletes
            # files that remain.
            with suppress(Exception):
                self.writers[place].close()
            with suppress(Exception):
                self.store.abandon(place, sink)


def publish(path: str, files: Sequence[File]) -> None:
    """Make files visible. Publishing them again changes nothing."""
    with explained(path):
        open_at(path).publish(files)


def sweep(path: str) -> None:
    """Delete files that were written and never published."""
    store = open_at(path)
    for directory in (DATA, COMPACTED):
        store.sweep(directory)


def delete(path: str) -> None:
    """Delete everything that exports wrote under a path, and nothing else."""
    sweep(path)
    store = open_at(path)
    for directory in (DATA, COMPACTED, STAGING, METADATA):
        store.delete(directory)


def files_in(path: str, directory: str = DATA) -> dict[str, list[str]]:
    """The lake's files by directory, as paths relative to the lake's root."""
    with explained(path):
        store = open_at(path)
        return {
            found: [store.place(info) for info in infos]
            for found, infos in store.files(directory).items()
        }


def merge(path: str, run: int, number: int, task: Merge, schemas: Mapping[str, Any]) -> list[File]:
    """Merge small files of one directory into an unpublished file."""
    store = open_at(path)
    found = [
        parquet.read_schema(store.path(place), filesystem=store.filesystem) for place in task.places
    ]
    if task.anew:
        found = [body_columns.without(each) for each in found]
        schemas = {queue: {**schema, "evolves": False} for queue, schema in schemas.items()}
    # Later files may have more columns.
    schema = pa.unify_schemas(found, promote_options="permissive")
    rows = (batch for place in task.places for batch in rows_of(store, place, schema))
    return write(path, run, number, rows, to=task.to, schemas=schemas if task.anew else None)


def rows_of(
    store: Store,
    place: str,
    schema: pa.Schema,
    names: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows. Columns that are missing in it come from its path, or are NULL.

    Skips row groups that have no rows ``where``, by their statistics.
    """
    from pyarrow import dataset

    day = pc.field("date") == key_of(place, "date")
    file = dataset.ParquetFileFormat().make_fragment(store.path(place), store.filesystem, day)
    yield from file.to_batches(
        schema=schema, columns=names, filter=where, batch_size=ROWS_AT_ONCE, use_threads=False
    )
