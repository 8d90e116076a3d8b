"""The data source ``pgqueue``.

>>> spark.read.format("pgqueue").option("url", url).option("subscribe", "orders").load()

Batch reads return archived messages with their bodies, or peek at live ones. Streams read the
archive, or consume a queue. Writes send each row exactly once. The options are listed in
:mod:`pyspark_pgqueue.source.options`. A read with a path, ``load("s3://bucket/lake")``, returns
the messages of a lake.

Spark calls the source in separate processes, one for each kind of call, and keeps them for a while.
So each call imports only what it needs: with everything imported, a process takes 37 MB more.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source import columns
from pyspark_pgqueue.source.landing import Landing
from pyspark_pgqueue.source.options import Options

PUSHING_WORKER = "data_source_pushdown_filters.py"


def _late(module: str) -> Any:
    return import_module(f"pyspark_pgqueue.{module}")


class PgQueueDataSource(Landing, DataSource):
    """The class that Spark asks for readers and writers."""

    @classmethod
    def name(cls) -> str:
        return "pgqueue"

    def schema(self) -> str:
        if "path" in self.options:
            return columns.of_lake()
        options = Options.parse(self.options)
        if options.body_schema is None or "body" not in options.names:
            return columns.ddl(options.columns, options.names)
        types = {
            "body": columns.Column(_late("source.bodies").type_of(options), ""),
            columns.CORRUPT: columns.Column("string", ""),
        }
        return columns.ddl({**options.columns, **types}, [*options.names, columns.CORRUPT])

    def reader(self, schema: StructType) -> Any:
        if "path" in self.options:
            return _late("lake.reading").LakeReader(dict(self.options), schema)
        options = Options.parse(self.options)
        _check(schema, options)
        if options.consumes:
            raise InvalidOption(
                "A batch read cannot consume: it never learns when its messages are done. Use "
                "readStream, with trigger(availableNow=True) to consume the present messages."
            )
        if options.lake is not None:
            raise InvalidOption(
                "The option lake is for streams. A batch reads a lake with load(path), and the "
                "archive without the option."
            )
        # Spark refuses a reader with pushFilters unless filter pushdown is on, and no API reports
        # whether it is. With pushdown, Spark plans in a special worker: the caller's file name
        # identifies it.
        caller = sys._getframe(1).f_code.co_filename
        pushes = caller.endswith(PUSHING_WORKER) if options.pushdown is None else options.pushdown
        reading = _late("source.reading")
        return (reading.PushingReader if pushes else reading.Reader)(options, schema)

    def streamReader(self, schema: StructType) -> Any:
        if "path" in self.options:
            raise InvalidOption(
                "A stream takes the path of its lake as an option: option('lake', path).load()."
            )
        options = Options.parse(self.options)
        _check(schema, options)
        if options.source != "archive":
            raise InvalidOption(
                f"source={options.source} cannot be streamed. Set mode=consume to consume the "
                f"queue, or leave source out to stream the archive."
            )
        if options.consumes:
            return _late("consume.stream").QueueStream(options, schema)
        if options.lake is not None:
            return _late("lake.stream").LakeStream(options, schema)
        return _late("source.stream").ArchiveStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return _late("sink.writing").BatchWriter(Options.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return _late("sink.writing").StreamWriter(Options.parse(self.options), schema, overwrite)


def _check(schema: StructType, options: Options) -> None:
    """Refuse unknown columns, and types that a column cannot have."""
    for field in schema.fields:
        if field.name == columns.CORRUPT and "body" in schema.names:
            continue
        usual = columns.found(options.columns, field.name).type
        if field.name not in columns.JSON and field.dataType.simpleString() != usual:
            raise InvalidOption(
                f"Column {field.name!r} must have the type {usual} in the schema, not "
                f"{field.dataType.simpleString()}: cast it after reading."
            )
