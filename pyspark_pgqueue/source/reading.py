"""Batch reads of the archive, of live messages, and of counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_pgqueue.errors import InvalidOption
from pyspark_pgqueue.source import arrow, columns, database, filters, planning, purges
from pyspark_pgqueue.source.landing import Landing
from pyspark_pgqueue.source.offsets import Offset
from pyspark_pgqueue.source.options import Options


class Reader(Landing, DataSourceReader):
    """A batch read of the archive, of live messages, or of counts."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.conditions: list[str] = []
        self.on_queue: list[str] = []

    def partitions(self) -> list[InputPartition]:
        options, names = self.options, columns.stored(self.schema.names)
        with database.connect(options.url) as connection:
            chosen = database.queues(connection, options, self.on_queue)
            if options.source == "counts":
                tasks = planning.count_tasks(options, names, chosen)
            elif options.source == "live":
                tasks = planning.live_tasks(options, names, chosen, self.conditions)
            elif options.start is None:
                raise InvalidOption(
                    "A batch read that starts at latest has nothing to read: set startingOffsets "
                    "to earliest, or to an offset."
                )
            else:
                # Read the purge marks before the end offset: a removal between the two then changes
                # a mark, which the tasks' guards detect. Read the queues again after the offset,
                # which may show messages of a new queue.
                marks = purges.marks(connection, options, chosen)
                server = database.server(connection)
                if options.fail_on_server_change:
                    database.check_server(connection, server)
                if options.fail_on_data_loss:
                    purges.Guard((), options.start).check(marks)
                tasks = planning.cut_by_position(
                    connection,
                    options,
                    names,
                    database.queues(connection, options, self.on_queue),
                    start=options.start,
                    end=options.end or Offset(server.now),
                    planned=marks,
                    conditions=self.conditions,
                )
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return arrow.read(self.options, self.schema, partition)


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
