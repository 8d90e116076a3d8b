"""A lake as a DataFrame.

Spark reads directories and HDFS itself. For an object store it would need a connector: a jar, with
credentials in settings of its own. pyarrow reads object stores instead, as it wrote them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_pgqueue.arrow import arrow_schema
from pyspark_pgqueue.columns import ARCHIVE, ddl
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.executors import Landing
from pyspark_pgqueue.lake import DATA
from pyspark_pgqueue.stores import address, explained, open_at

__all__ = ["LakeReader", "read", "size"]

_SPARKS_OWN = {"file", "hdfs", "viewfs"}
_ROWS = 1024
#: Bytes of files in one task; a larger file has a task of its own.
_TASK = 64 * 1024 * 1024

Days = tuple[dt.date, dt.date]


def read(spark: Any, path: str, names: Iterable[str] = (), days: Days | None = None) -> Any:
    """Return a lake's messages that ended on these days, or all of them, with these columns.

    >>> read(spark, "s3://bucket/lake").where("state = 'FAILED'").count()
    12

    ``queue`` and ``date`` are always included; they come from the files' paths.

    Raises InvalidOption if nothing was exported there, and StoreFailed.
    """
    path = address(path)
    with explained(path):
        store = open_at(path)
        if not store.exists(store.path(DATA)):
            raise InvalidOption(f"There is no lake at {path}: nothing was exported there yet.")
    wanted = [name for name in names or ARCHIVE if name != "queue"]
    # An explicit schema: Spark would infer a number for a queue named 007.
    schema = f"{ddl(ARCHIVE, wanted)}, queue string, date string"
    if "://" not in path or path.partition("://")[0] in _SPARKS_OWN:
        rows = spark.read.schema(schema).parquet(f"{path}/{DATA}")
    else:
        options = {} if days is None else {"first": str(days[0]), "last": str(days[1])}
        rows = spark.read.format("pgqueue").schema(schema).options(**options).load(path)
    return rows if days is None else rows.where(f"date BETWEEN '{days[0]}' AND '{days[1]}'")


def size(path: str, days: Days | None = None) -> int:
    """Bytes of a lake's files of these days."""
    first, last = ("", "9999") if days is None else map(str, days)
    return sum(
        info.size
        for directory, infos in open_at(path).files(DATA).items()
        if first <= _of(directory, "date") <= last
        for info in infos
    )


class LakeReader(Landing, DataSourceReader):
    """Reads a lake for the data source ``pgqueue``, in tasks of about ``_TASK`` bytes of files."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.path, self.schema = options["path"], schema
        self.first, self.last = options.get("first", ""), options.get("last", "9999")

    def partitions(self) -> Sequence[InputPartition]:
        store = open_at(self.path)
        tasks: list[list[str]] = []
        size = 0
        for directory, infos in store.files(DATA).items():
            if self.first <= _of(directory, "date") <= self.last:
                for info in infos:
                    if not tasks or size + info.size > _TASK:
                        tasks.append([])
                        size = 0
                    tasks[-1].append(store.place(info))
                    size += info.size
        return [InputPartition(places) for places in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For an empty list of partitions, Spark passes one partition without a value.
        if partition is None or partition.value is None:
            return
        store, wanted = open_at(self.path), arrow_schema(self.schema)
        for place in partition.value:
            yield from _rows(store.filesystem, store.path(place), wanted)


def _rows(filesystem: fs.FileSystem, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows. Columns missing in the file come from its path, or are NULL."""
    with parquet.ParquetFile(path, filesystem=filesystem) as file:
        there = set(file.schema_arrow.names) - {"date"}
        columns = [name for name in wanted.names if name in there]
        for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column(field.name).cast(field.type)
                    if field.name in there
                    else pa.repeat(pa.scalar(_of(path, field.name) or None, field.type), len(batch))
                    for field in wanted
                ],
                schema=wanted,
            )


def _of(place: str, key: str) -> str:
    """The value of a key in a path, as in ``queue=orders``."""
    return place.partition(f"/{key}=")[2].partition("/")[0]
