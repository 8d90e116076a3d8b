"""The data source ``pgqueue``.

>>> spark.read.format("pgqueue").option("url", url).option("subscribe", "orders").load()

Batch reads return archived messages with their bodies, or peek at live ones. Streams read the
archive, or consume a queue. Writes send each row exactly once. See :mod:`.options` for the options.
A read with a path, ``load("s3://bucket/lake")``, returns the messages of a lake.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_pgqueue import arrow, bodies, columns, filters, lake_source, planning
from pyspark_pgqueue.consume import QueueStream
from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.executors import Landing
from pyspark_pgqueue.offsets import Offset
from pyspark_pgqueue.options import Options
from pyspark_pgqueue.sink import BatchWriter, StreamWriter
from pyspark_pgqueue.stream import ArchiveStream

__all__ = ["PgQueueDataSource"]

PUSHING_WORKER = "data_source_pushdown_filters.py"


class PgQueueDataSource(Landing, DataSource):
    """The class that Spark asks for readers and writers."""

    @classmethod
    def name(cls) -> str:
        return "pgqueue"

    def schema(self) -> str:
        if "path" in self.options:
            return lake_source.SCHEMA
        options = Options.parse(self.options)
        if options.body_schema is None or "body" not in options.names:
            return columns.ddl(options.columns, options.names)
        if options.body_schema == bodies.INFER:
            with planning.connect(options.url) as connection:
                body = bodies.ddl(bodies.infer(planning.sample(connection, options)))
        else:
            body = bodies.as_ddl(options.body_schema)
        types = {"body": columns.Column(body, ""), bodies.CORRUPT: columns.Column("string", "")}
        return columns.ddl({**options.columns, **types}, [*options.names, bodies.CORRUPT])

    def reader(self, schema: StructType) -> DataSourceReader:
        if "path" in self.options:
            return lake_source.LakeReader(dict(self.options), schema)
        options = Options.parse(self.options)
        _check(schema, options)
        if options.consume:
            raise InvalidOption(
                "A batch read cannot consume: it never learns when its messages are done. Use "
                "readStream, with trigger(availableNow=True) to consume the present messages."
            )
        # Spark refuses a reader with pushFilters unless pushing is on, and no API tells whether it
        # is. If it is, Spark plans in a special worker, which the caller's file name shows.
        caller = sys._getframe(1).f_code.co_filename
        pushes = caller.endswith(PUSHING_WORKER) if options.pushdown is None else options.pushdown
        return (PushingReader if pushes else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> ArchiveStream | QueueStream:
        options = Options.parse(self.options)
        _check(schema, options)
        if options.source != "archive":
            raise InvalidOption(
                f"source={options.source} cannot be streamed. Set mode=consume to consume the "
                f"queue, or leave source out to stream the archive."
            )
        return QueueStream(options, schema) if options.consume else ArchiveStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(Options.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(Options.parse(self.options), schema, overwrite)


class Reader(Landing, DataSourceReader):
    """Batch reads of the archive, and peeks at live messages."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.conditions: list[str] = []
        self.on_queue: list[str] = []

    def partitions(self) -> list[InputPartition]:
        options, names = self.options, columns.stored(self.schema.names)
        with planning.connect(options.url) as connection:
            if options.source == "counts":
                tasks = planning.count_tasks(connection, options, names, self.on_queue)
            elif options.source == "live":
                tasks = planning.live_tasks(
                    connection, options, names, self.conditions, self.on_queue
                )
            elif options.start is None:
                raise InvalidOption("A batch read that starts at latest has nothing to read.")
            else:
                chosen = planning.queues(connection, options, self.on_queue)
                # The purge marks are read before the end offset, so that a later removal changes
                # them.
                marks = planning.marks(connection, options, chosen)
                server = planning.server(connection)
                if options.fail_on_server_change:
                    planning.check_server(connection, server)
                if options.fail_on_data_loss:
                    planning.Guard((), options.start).check(marks)
                tasks = planning.cut_by_position(
                    connection,
                    options,
                    names,
                    start=options.start,
                    end=options.end or Offset(server.now),
                    planned=marks,
                    conditions=self.conditions,
                    on_queue=self.on_queue,
                )
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # For an empty list of partitions, Spark passes one partition without a value.
        if partition is not None and partition.value is not None:
            options = self.options
            yield from arrow.read(
                options.url, partition.value, self.schema, options.replica_timeout
            )


class PushingReader(Reader):
    """A reader with filters that PostgreSQL applies."""

    def pushFilters(self, filters_: list[Any]) -> Iterable[Any]:
        body = next((f.dataType for f in self.schema.fields if f.name == "body"), None)
        known = self.options.columns
        if self.options.source == "counts":
            known = {"queue": known["queue"]}  # the other columns are aggregates
        pushed, left = filters.push(filters_, known, body)
        self.on_queue = [condition for name, condition in pushed if name == "queue"]
        self.conditions = [condition for name, condition in pushed if name != "queue"]
        return left


def _check(schema: StructType, options: Options) -> None:
    """Refuse unknown columns, and types that a column cannot have."""
    for field in schema.fields:
        if field.name == bodies.CORRUPT and "body" in schema.names:
            continue
        usual = columns.found(options.columns, field.name).type
        if field.name not in columns.JSON and field.dataType.simpleString() != usual:
            raise InvalidOption(
                f"Column {field.name!r} is {usual}, not {field.dataType.simpleString()}: "
                f"cast it after reading."
            )
