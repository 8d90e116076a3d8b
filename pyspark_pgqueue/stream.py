"""The archive as a stream: newly archived messages, without gaps or duplicates.

An offset is a snapshot (see :mod:`.offsets`). A transaction that commits late is therefore
delivered late, and delays no other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_pgqueue import arrow, columns, planning
from pyspark_pgqueue.errors import DataLost, ServerChanged
from pyspark_pgqueue.executors import Landing
from pyspark_pgqueue.offsets import Offset, Snapshot
from pyspark_pgqueue.options import Options

__all__ = ["ArchiveStream"]


class ArchiveStream(Landing, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver while the query runs; only ``read`` runs on executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.target: Snapshot | None = None

    def initialOffset(self) -> dict[str, Any]:
        with planning.connect(self.options.url) as connection:
            server = planning.server(connection)
            if self.options.fail_on_server_change:
                planning.check_server(connection, server)
        start = self.options.start
        since = server.now if start is None else start.since
        if start is not None and start.after is not None:
            return Offset(since, start.until, start.after, server.system).as_dict()
        return Offset(since, system=server.system).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        with planning.connect(self.options.url) as connection:
            self.target = planning.server(connection).now

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = Offset.parse(start)
        with planning.connect(self.options.url) as connection:
            server = planning.server(connection)
            if not self._is_ready(connection, server, at):
                return start
            until = at.until or self.target or server.now
            chosen = planning.queues(connection, self.options)
            if not chosen:
                return start
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            last, more = self._last_of(connection, chosen, at, until, most)
            if more:
                return Offset(at.since, until, last, server.system).as_dict()
            if last is not None or at.until is not None:
                return Offset(until, system=server.system).as_dict()
            if at.since.running and at.since.settled_by(until):
                # Drop ended transactions from the offset, at the cost of one empty batch.
                return Offset(Snapshot.below(until.xmin), system=server.system).as_dict()
        # Keep the offset: a new one without rows would cause an empty batch at every trigger.
        return start

    def _last_of(
        self,
        connection: psycopg.Connection[Any],
        chosen: list[planning.Queue],
        at: Offset,
        until: Snapshot,
        most: int | None,
    ) -> tuple[tuple[int, int] | None, bool]:
        """The last row of a step, and whether more rows follow it."""
        condition = planning.in_window(self.options, chosen, at, Offset(until))
        order, skip = ("ORDER BY a.archive_xid, a.id", most - 1) if most else ("", 0)
        rows = connection.execute(
            f"SELECT a.archive_xid, a.id FROM pgqueue_archive a WHERE {condition} "
            f"{order} OFFSET {skip} LIMIT 2"
        ).fetchall()
        if not rows and most:  # the step's limit exceeds the rows left
            rows = connection.execute(
                f"SELECT a.archive_xid, a.id FROM pgqueue_archive a WHERE {condition} LIMIT 1"
            ).fetchall()
        if not rows:
            return None, False
        return (int(rows[0][0]), int(rows[0][1])), bool(most) and len(rows) == 2

    def _is_ready(
        self, connection: psycopg.Connection[Any], server: planning.Server, at: Offset
    ) -> bool:
        """Whether the stream may continue from here. False while a replica is behind the offset."""
        options = self.options
        if at.system and at.system != server.system and options.fail_on_server_change:
            raise ServerChanged(
                f"The checkpoint was made with another server (system identifier {at.system}, "
                f"this one has {server.system}), with other transaction numbers. Start "
                f"from a new checkpoint, or set failOnServerChange=false after pg_upgrade."
            )
        reached = (at.until or at.since).xmax
        if reached > server.now.xmax:
            if server.is_replica:
                return False
            if options.fail_on_server_change:
                raise ServerChanged(
                    f"The checkpoint is ahead of the server (transaction {reached}, the server is "
                    f"at {server.now.xmax}): the server was restored to an earlier state. Start "
                    f"from a new checkpoint, and expect messages archived since to be repeated."
                )
        self._check_purged(connection, at, planning.queues(connection, options))
        return True

    def _check_purged(
        self, connection: psycopg.Connection[Any], at: Offset, chosen: list[planning.Queue]
    ) -> None:
        try:
            planning.Guard((), at).check(planning.marks(connection, self.options, chosen))
        except DataLost as lost:
            if self.options.fail_on_data_loss:
                raise
            warnings.warn(str(lost), stacklevel=2)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options, at = self.options, Offset.parse(start)
        with planning.connect(options.url) as connection:
            tasks = planning.cut_by_transaction(
                connection, options, columns.stored(self.schema.names), at, Offset.parse(end)
            )
            chosen = planning.queues(connection, options)
            # Checked here too: Spark repeats a batch after a restart without calling latestOffset.
            self._check_purged(connection, at, chosen)
        if options.fail_on_data_loss:
            # Each task checks again, since retention does not wait for streams.
            guard = planning.Guard(tuple(pk for pk, _ in chosen), at)
            tasks = [replace(task, guard=guard) for task in tasks]
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is not None and partition.value is not None:
            yield from arrow.read(
                self.options.url, partition.value, self.schema, self.options.replica_timeout
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the archive keeps delivered messages."""

    def reportLatestOffset(self) -> dict[str, Any]:
        with planning.connect(self.options.url) as connection:
            server = planning.server(connection)
        return Offset(server.now, system=server.system).as_dict()
