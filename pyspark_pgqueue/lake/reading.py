"""A lake as a DataFrame.

Spark reads directories and HDFS itself. For an object store it would need a connector: a jar, and
credentials in the jar's own settings. Object stores are therefore read by pyarrow, with the
credentials that exports use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.lake.files import DATA, rows_of
from pyspark_pgqueue.lake.stores import address, explained, open_at
from pyspark_pgqueue.source.arrow import arrow_schema
from pyspark_pgqueue.source.columns import ARCHIVE, of_lake
from pyspark_pgqueue.source.landing import Landing

_SPARKS_OWN = {"file", "hdfs", "viewfs"}
#: Bytes of files in one task; a larger file has a task of its own.
_TASK = 64 * 1024 * 1024


def read(spark: Any, path: str, names: Iterable[str] = ()) -> Any:
    """Return a lake's messages as a DataFrame.

    ``names`` selects columns. By default, all are returned.

    >>> read(spark, "s3://bucket/lake").where("state = 'FAILED'").count()
    12

    ``queue`` and ``date`` are always included; they come from the files' paths.

    Raises InvalidOption if nothing was exported there, and StoreFailed.
    """
    path = address(path)
    with explained(path):
        store = open_at(path)
        if not store.exists(store.path(DATA)):
            raise InvalidOption(
                f"There is no lake at {path}: nothing was exported there yet. Export first, or "
                f"correct the path."
            )
    # An explicit schema: Spark would infer a number for a queue named 007.
    schema = of_lake(names or ARCHIVE)
    if "://" not in path or path.partition("://")[0] in _SPARKS_OWN:
        return spark.read.schema(schema).parquet(f"{path}/{DATA}")
    return spark.read.format("pgqueue").schema(schema).load(path)


class LakeReader(Landing, DataSourceReader):
    """Reads a lake for the data source ``pgqueue``, in tasks of about ``_TASK`` bytes of files."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.path, self.schema = options["path"], schema

    def partitions(self) -> Sequence[InputPartition]:
        store = open_at(self.path)
        tasks: list[list[str]] = []
        size = 0
        for info in chain.from_iterable(store.files(DATA).values()):
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
            yield from rows_of(store, place, wanted)
