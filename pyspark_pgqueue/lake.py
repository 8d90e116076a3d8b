"""The files of a lake: where they lie, and how a run's files get there at once.

``archive/queue=orders/date=2026-11-21/run-7-0-….parquet`` under the lake's path, which DuckDB,
Polars, Athena and Spark read alike. A run writes beside them, where no reader looks, and moves
its files when all of them are there; which ones is noted in the database before, so that a run
that dies on the way is finished, not repeated.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from pyspark_pgqueue.columns import ARCHIVE, ddl
from pyspark_pgqueue.errors import InvalidOption, LakeDiffers

__all__ = [
    "COLUMNS",
    "DATA",
    "delete",
    "discard",
    "files_in",
    "publish",
    "read",
    "write",
]

DATA = "archive"
STAGING = "_staging"

#: In the files; queue and date are in their paths.
COLUMNS = tuple(name for name in ARCHIVE if name != "queue")
# What repeats; a dictionary for what does not costs time and space.
_REPEATED = ["state", "group_key", "error"]
# Bytes of rows in memory: of one file before they are written, and of all files of a task.
_ROW_GROUP = 16 * 1024 * 1024
_HELD = 32 * 1024 * 1024
# Of a file that is compacted.
_ROWS_AT_ONCE = 1024

File = dict[str, Any]


def open_at(path: str) -> tuple[fs.FileSystem, str]:
    """A directory, or an address as in ``s3://bucket/lake``."""
    if "://" in path:
        try:
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidOption(
                f"The lake cannot be at {path}: a path, file://, s3://, gs://, abfs:// and hdfs:// "
                f"are what pyarrow knows, and s3a:// is Hadoop's name for s3://. ({error})"
            ) from error
        return found
    return fs.LocalFileSystem(), str(Path(path).resolve())


def write(path: str, run: int, number: int, batches: Iterable[pa.RecordBatch]) -> list[File]:
    """Write one task's rows beside the lake's; returns the files, with their final places."""
    writing = _Writing(path, run, number)
    try:
        for batch in batches:
            writing.add(batch)
        return writing.finish()
    finally:
        writing.close()


class _Writing:
    """One task's files, a file for each queue and day. Holds ``_HELD`` bytes of rows at most."""

    def __init__(self, path: str, run: int, number: int) -> None:
        self.filesystem, self.root = open_at(path)
        attempt = uuid.uuid4().hex[:8]
        self.staging = f"{STAGING}/run-{run}/{attempt}"
        self.name = f"run-{run}-{number}-{attempt}"
        self.writers: dict[str, parquet.ParquetWriter] = {}
        self.rows: Counter[str] = Counter()
        self.held: dict[str, list[pa.RecordBatch]] = {}
        self.sizes: Counter[str] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        days = pc.strftime(batch.column("archived_at"), format="%Y-%m-%d")
        queues = batch.column("queue")
        columns = batch.drop_columns(["queue"])
        for queue in pc.unique(queues).to_pylist():
            for day in pc.unique(days).to_pylist():
                chosen = pc.and_(pc.equal(queues, queue), pc.equal(days, day))
                rows = columns if pc.all(chosen).as_py() else columns.filter(chosen)
                if rows.num_rows:
                    self._hold(f"queue={queue}/date={day}", rows)

    def _hold(self, directory: str, rows: pa.RecordBatch) -> None:
        self.held.setdefault(directory, []).append(rows)
        self.sizes[directory] += rows.nbytes
        self.rows[directory] += rows.num_rows
        while self.sizes.total() > _HELD or self.sizes[directory] > _ROW_GROUP:
            self._flush(self.sizes.most_common(1)[0][0])

    def _flush(self, directory: str) -> None:
        rows = pa.Table.from_batches(self.held.pop(directory))
        del self.sizes[directory]
        if directory not in self.writers:
            place = f"{self.root}/{self._place(directory)}"
            self.filesystem.create_dir(place.rpartition("/")[0], recursive=True)
            self.writers[directory] = parquet.ParquetWriter(
                place,
                rows.schema,
                filesystem=self.filesystem,
                compression="zstd",
                use_dictionary=_REPEATED,
            )
        self.writers[directory].write_table(rows)

    def _place(self, directory: str) -> str:
        return f"{self.staging}/{directory}/{self.name}.parquet"

    def finish(self) -> list[File]:
        for directory in list(self.held):
            self._flush(directory)
        self.close()
        files = []
        for directory, count in sorted(self.rows.items()):
            place = self._place(directory)
            size = self.filesystem.get_file_info(f"{self.root}/{place}").size
            target = f"{DATA}/{directory}/{self.name}.parquet"
            files.append({"from": place, "to": target, "rows": count, "bytes": size})
        return files

    def close(self) -> None:
        while self.writers:
            self.writers.popitem()[1].close()


def publish(path: str, add: Sequence[File], remove: Sequence[str] = ()) -> None:
    """Move files to their places and remove others; once more changes nothing."""
    filesystem, root = open_at(path)
    for directory in {file["to"].rpartition("/")[0] for file in add}:
        filesystem.create_dir(f"{root}/{directory}", recursive=True)
    for file in add:
        source, target = f"{root}/{file['from']}", f"{root}/{file['to']}"
        if _exists(filesystem, source):
            filesystem.move(source, target)
        elif not _exists(filesystem, target):
            raise LakeDiffers(
                f"{source} should be moved to {target}, and neither is there. Restore it, or "
                f"delete the run in the database to export its span again."
            )
    for place in remove:
        if _exists(filesystem, f"{root}/{place}"):
            filesystem.delete_file(f"{root}/{place}")


def discard(path: str, run: int) -> None:
    """Forget what a run has written beside the lake."""
    filesystem, root = open_at(path)
    directory = f"{root}/{STAGING}/run-{run}"
    if _exists(filesystem, directory):
        filesystem.delete_dir(directory)


def delete(path: str) -> None:
    """Delete what exports have written under a path, and nothing else there."""
    filesystem, root = open_at(path)
    for directory in (DATA, STAGING):
        if _exists(filesystem, f"{root}/{directory}"):
            filesystem.delete_dir(f"{root}/{directory}")


def files_in(path: str) -> dict[str, list[str]]:
    """The lake's files by directory, as places under its path."""
    filesystem, root = open_at(path)
    selector = fs.FileSelector(f"{root}/{DATA}", recursive=True, allow_not_found=True)
    found: dict[str, list[str]] = {}
    for info in filesystem.get_file_info(selector):
        if info.type == fs.FileType.File and info.path.endswith(".parquet"):
            place = info.path[len(root) + 1 :] if info.path.startswith(root) else info.path
            found.setdefault(place.rpartition("/")[0], []).append(place)
    return {directory: sorted(places) for directory, places in sorted(found.items())}


def read(spark: Any, path: str) -> Any:
    """The lake as a DataFrame. By a given schema: a queue named 007 is no number."""
    schema = f"{ddl(ARCHIVE, COLUMNS)}, queue string, date string"
    return spark.read.schema(schema).parquet(f"{path}/{DATA}")


def merge(path: str, run: int, number: int, directory: str, places: Sequence[str]) -> list[File]:
    """Write small files of one directory again as one, beside the lake."""
    filesystem, root = open_at(path)
    queue = directory.partition("queue=")[2].partition("/")[0]

    def batches() -> Iterator[pa.RecordBatch]:
        for place in places:
            with parquet.ParquetFile(f"{root}/{place}", filesystem=filesystem) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                    named = pa.repeat(pa.scalar(queue), batch.num_rows)
                    yield batch.append_column("queue", named)

    return write(path, run, number, batches())


def _exists(filesystem: fs.FileSystem, place: str) -> bool:
    return filesystem.get_file_info(place).type != fs.FileType.NotFound
