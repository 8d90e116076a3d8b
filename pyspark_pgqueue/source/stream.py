"""The base class of both streams, and the archive's stream: newly archived messages, without gaps
or duplicates.

An offset of the archive is a snapshot (see :mod:`.offsets`). Messages of a transaction that commits
late are therefore delivered late, and delay no others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
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

from django_pgqueue.bare import BareRunner
from pyspark_pgqueue.errors import DataLost, ServerChanged
from pyspark_pgqueue.source import arrow, columns, database, planning, purges
from pyspark_pgqueue.source.landing import Landing
from pyspark_pgqueue.source.offsets import Offset, Snapshot
from pyspark_pgqueue.source.options import Options

#: The number at which counting messages stops.
COUNT_TO = 100_000


class Stream(Landing, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream's reader. Lives on the driver while the query runs; ``read`` runs on executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._open: BareRunner | None = None
        self._patience = Patience(options.min_rows, options.longest_wait)

    @property
    def _runner(self) -> BareRunner:
        """The stream's connection, opened again after it was lost."""
        if self._open is None or self._open.session.closed:
            self._open = runner(self.options.url)
        return self._open

    @property
    def _connection(self) -> psycopg.Connection[Any]:
        return self._runner.session

    def _check_server(self, system: str, server: database.Server) -> None:
        if system and system != server.system and self.options.fail_on_server_change:
            raise ServerChanged(
                f"The checkpoint is from another server, so its ids and transaction numbers are "
                f"not valid here (its system identifier is {system}, this server's is "
                f"{server.system}). Start from a new checkpoint. After pg_upgrade, set "
                f"failOnServerChange=false instead."
            )

    def _lost(self, lost: DataLost) -> None:
        """Raise DataLost, or with failOnDataLoss=false only warn."""
        if self.options.fail_on_data_loss:
            raise lost
        warnings.warn(str(lost), stacklevel=3)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return arrow.read(self.options, self.schema, partition)

    def stop(self) -> None:
        if self._open is not None:
            self._open.session.close()


def runner(url: str) -> BareRunner:
    """Open a new connection, wrapped as the runner that the engine's functions take."""
    return BareRunner(database.connect(url), {"EXACT_COUNT_LIMIT": COUNT_TO})


class Patience:
    """Delays a batch until there are ``least`` rows, or ``longest`` seconds after the first row."""

    def __init__(self, least: int, longest: float) -> None:
        self.least, self.longest = least, longest
        self._since: float | None = None

    def is_over(self, count: Callable[[int], int]) -> bool:
        """Whether a batch may begin; ``count`` returns the number of rows, up to its argument."""
        if self.least > 1:
            found = count(self.least)
            self._since = (self._since or monotonic()) if found else None
            if found < self.least and (
                self._since is None or monotonic() - self._since < self.longest
            ):
                return False
        self._since = None
        return True


class ArchiveStream(Stream):
    """The archive as a stream."""

    #: With Trigger.AvailableNow: the snapshot at which the query ends.
    target: Snapshot | None = None

    def initialOffset(self) -> dict[str, Any]:
        server = database.server(self._connection)
        if self.options.fail_on_server_change:
            database.check_server(self._connection, server)
        start = self.options.start or Offset(server.now)
        return replace(start, system=server.system).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = database.server(self._connection).now

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = Offset.parse(start)
        server = database.server(self._connection)
        chosen = self._queues()
        if not self._is_ready(server, at, chosen):
            return start

        def reached(
            since: Snapshot, until: Snapshot | None = None, after: tuple[int, int] | None = None
        ) -> dict[str, Any]:
            found = replace(at, since=since, until=until, after=after, system=server.system)
            return found.as_dict()

        until = at.until or self.target or server.now
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        sooner = self._sooner(at, until, most)
        if sooner is not None:
            return reached(sooner)
        if self.target is None and at.until is None:
            condition = planning.in_window(self.options, chosen, at, Offset(until))
            if not self._patience.is_over(lambda most: self._count(condition, most)):
                return start
        last, more = self._last_of(chosen, at, until, most)
        if more:
            return reached(at.since, until, last)
        if last is not None or at.until is not None:
            return reached(until)
        if at.since.running and at.since.settled_by(until):
            # Drop ended transactions from the offset, at the cost of one empty batch.
            return reached(Snapshot.below(until.xmin))
        # Keep the offset: a new one without rows would cause an empty batch at every trigger.
        return start

    def _sooner(self, at: Offset, until: Snapshot, most: int | None) -> Snapshot | None:
        """Where a step ends without a look at the archive. None: where the archive's rows say."""
        return None

    def _queues(self) -> list[database.Queue]:
        return database.queues(self._connection, self.options, may_be_dropped=True)

    def _count(self, condition: str, most: int) -> int:
        [(count,)] = self._connection.execute(
            f"SELECT count(*) FROM (SELECT FROM pgqueue_archive a WHERE {condition} "
            f"LIMIT {most}) found"
        )
        return int(count)

    def _last_of(
        self,
        chosen: list[database.Queue],
        at: Offset,
        until: Snapshot,
        most: int | None,
    ) -> tuple[tuple[int, int] | None, bool]:
        """Return the last row of a step, and whether more rows follow it."""
        condition = planning.in_window(self.options, chosen, at, Offset(until))
        order, skip = ("ORDER BY a.archive_xid, a.id", most - 1) if most else ("", 0)
        rows = self._connection.execute(
            f"SELECT a.archive_xid, a.id FROM pgqueue_archive a WHERE {condition} "
            f"{order} OFFSET {skip} LIMIT 2"
        ).fetchall()
        if not rows and most:  # the step's limit exceeds the rows left
            rows = self._connection.execute(
                f"SELECT a.archive_xid, a.id FROM pgqueue_archive a WHERE {condition} LIMIT 1"
            ).fetchall()
        if not rows:
            return None, False
        return (int(rows[0][0]), int(rows[0][1])), bool(most) and len(rows) == 2

    def _is_ready(self, server: database.Server, at: Offset, chosen: list[database.Queue]) -> bool:
        """Whether the stream may continue from ``at``. False while a replica is behind it."""
        self._check_server(at.system, server)
        reached = (at.until or at.since).xmax
        if reached > server.now.xmax:
            if server.is_replica:
                return False
            if self.options.fail_on_server_change:
                raise ServerChanged(
                    f"The checkpoint is at transaction {reached}, but the server is only at "
                    f"{server.now.xmax}: the server was restored to an earlier state. Start from a "
                    f"new checkpoint. It may deliver messages again that were delivered before."
                )
        self._check_purged(at, chosen)
        return True

    def _check_purged(self, at: Offset, chosen: list[database.Queue]) -> None:
        for mark in purges.marks(self._connection, self.options, chosen):
            if self._reached(at, mark.queue).may_lack(mark.below_xid):
                self._lost(DataLost(mark.queue, dropped=mark.dropped))

    def _reached(self, at: Offset, queue: str) -> Offset:
        """The position from which the stream reads a queue's archive."""
        return at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        at, chosen = Offset.parse(start), self._queues()
        tasks = self._tasks(at, Offset.parse(end), chosen)
        # Checked here too: Spark repeats a batch after a restart without calling latestOffset.
        self._check_purged(at, chosen)
        return [InputPartition(task) for task in tasks]

    def _tasks(self, at: Offset, end: Offset, chosen: list[database.Queue]) -> list[Any]:
        names = columns.stored(self.schema.names)
        tasks = planning.cut_by_transaction(self._connection, self.options, names, chosen, at, end)
        # Each task checks again, since retention does not wait for streams.
        guard = self._guard(at, tuple(pk for pk, _ in chosen))
        return [replace(task, guard=guard) for task in tasks]

    def _guard(self, at: Offset, queue_ids: tuple[int, ...]) -> purges.Guard | None:
        return purges.Guard(queue_ids, at) if self.options.fail_on_data_loss else None

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the archive keeps delivered messages."""

    def reportLatestOffset(self) -> dict[str, Any]:
        server = database.server(self._connection)
        return Offset(server.now, system=server.system).as_dict()
