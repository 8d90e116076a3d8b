"""A queue as a stream: leases messages, passes their rows to the sink, and archives a batch after
Spark has committed it.

An offset names the deliveries in its batch. Spark writes the offset down before it runs the batch.
A killed driver therefore delivers the same messages again when it restarts from its checkpoint: at
least once, and exactly once into a sink that recognises a batch by its number. If the driver never
comes back, no message is lost: its leases expire, and other consumers get the messages.
"""

from __future__ import annotations

import datetime as dt
import math
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from django_pgqueue.bare import BareRunner, open_queues
from django_pgqueue.engine.metrics.measuring import metrics
from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.engine.settle.outcomes import complete
from django_pgqueue.engine.settle.settling import set_vt
from django_pgqueue.types import Receipt
from pyspark_pgqueue import arrow, columns, planning, taking
from pyspark_pgqueue.errors import DataLost, InvalidOption, ServerChanged
from pyspark_pgqueue.executors import Landing
from pyspark_pgqueue.filters import literal
from pyspark_pgqueue.options import Options
from pyspark_pgqueue.planning import Task
from pyspark_pgqueue.taking import Taken

__all__ = ["Batch", "QueueStream"]

#: Messages in a batch unless maxOffsetsPerTrigger is set. All of them are in flight at once.
USUAL_BATCH = 10_000
#: Messages in a task, so that a batch of the usual size has several tasks.
PER_TASK = 2_500
#: Lease extensions in one visibility timeout.
EXTENSIONS = 3
#: Seconds between two reads of an empty queue; Spark asks every 10 ms.
IDLE = 0.1
#: Seconds between two counts of the backlog, and the number at which counting stops.
COUNT_EVERY = 5.0
COUNT_TO = 100_000


@dataclass(frozen=True)
class Batch:
    """An offset: a batch's number and its deliveries."""

    number: int = 0
    deliveries: tuple[Taken, ...] = ()
    system: str = ""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Batch:
        """Parse an offset from a checkpoint."""
        if "n" not in value or "taken" not in value:
            raise InvalidOption(
                "The checkpoint belongs to a stream of the archive. A stream that consumes a queue "
                "needs a checkpoint of its own."
            )
        deliveries = tuple(
            Taken(int(each["queue"]), tuple(each["leases"]), bool(each["groups"]))
            for each in value["taken"]
        )
        return cls(int(value["n"]), deliveries, str(value["sys"]))

    def as_dict(self) -> dict[str, Any]:
        taken = [
            {"queue": each.queue_id, "groups": each.grouped, "leases": list(each.parts)}
            for each in self.deliveries
        ]
        return {"n": self.number, "taken": taken, "sys": self.system}


class QueueStream(Landing, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver while the query runs; only ``read`` runs on executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._open: BareRunner | None = None
        self._keeper: _Keeper | None = None
        #: The batch that is leased and not yet acknowledged, and the number of the last
        #: acknowledged one.
        self._batch: Batch | None = None
        self._acknowledged: int | None = None
        #: With Trigger.AvailableNow: the newest message of each queue when the query began.
        self._newest: dict[int, int] | None = None
        self._looked_at = float("-inf")
        self._counted_at = float("-inf")
        self._backlog: dict[str, Any] = {}
        self._redelivered = 0

    # Called by Spark

    def initialOffset(self) -> dict[str, Any]:
        server = planning.server(self._connection)
        if server.is_replica:
            raise InvalidOption("A standby cannot lease messages: consume from the primary.")
        return Batch(system=server.system).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows or USUAL_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:
        self._newest = {queue.id: taking.newest(queue) for queue in self._queues()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        last = Batch.parse(start)
        self._check_server(last)
        # Spark asks for the next batch after it has committed the previous one.
        self._acknowledge(last)
        if self._batch is not None:
            return self._batch.as_dict()
        if self._newest is None and monotonic() - self._looked_at < IDLE:
            return start
        # Always limited, since the whole batch is in flight.
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else USUAL_BATCH
        taken = self._lease(most, last.number)
        if not taken:
            self._looked_at = monotonic()
            return start
        self._batch = Batch(last.number + 1, tuple(taken), last.system)
        self._keep(self._batch)
        return self._batch.as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        batch = Batch.parse(end)
        if batch.number == Batch.parse(start).number:
            return []
        if self._batch is None:
            # Spark delivers this batch again after a restart.
            self._check_server(batch)
            self._batch = batch
            self._keep(batch).extend()
        return [InputPartition(task) for task in self._tasks(batch)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition is not None and partition.value is not None:
            yield from arrow.read(self.options.url, partition.value, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._acknowledge(Batch.parse(end))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report the backlog in the query's progress, the only place Spark offers for it."""
        if monotonic() - self._counted_at >= COUNT_EVERY:
            found = [metrics(queue) for queue in self._queues()]
            self._backlog = {
                "lagMessages": sum(each.visible + each.waiting for each in found),
                "lagSeconds": round(
                    max((each.oldest_age or 0.0 for each in found), default=0.0), 1
                ),
            }
            self._counted_at = monotonic()
        return {**self._backlog, "redelivered": self._redelivered}

    def stop(self) -> None:
        """Keep the leases: only Spark's log tells, at the next start, whether the last batch is
        done.
        """
        if self._keeper is not None:
            self._keeper.end()
        if self._open is not None:
            self._open.session.close()

    # Leases

    @property
    def _runner(self) -> BareRunner:
        if self._open is None or self._open.session.closed:
            self._open = _runner(self.options.url)
        return self._open

    @property
    def _connection(self) -> psycopg.Connection[Any]:
        return self._runner.session

    def _queues(self, condition: str = "true") -> list[OpenQueue]:
        """The chosen queues of which a condition is true."""
        ids = [pk for pk, _ in planning.queues(self._connection, self.options)]
        return open_queues(self._runner, f"id = ANY(%(ids)s) AND {condition}", {"ids": ids})

    def _check_server(self, batch: Batch) -> None:
        if not self.options.fail_on_server_change or self._acknowledged is not None:
            return
        system = planning.server(self._connection).system
        if batch.system != system:
            raise ServerChanged(
                f"The checkpoint was made with another server (system identifier {batch.system}, "
                f"this one has {system}), where ids name other messages. Start from a new "
                f"checkpoint, or set failOnServerChange=false after pg_upgrade."
            )

    def _lease(self, most: int, turn: int) -> list[Taken]:
        """Lease up to ``most`` messages. Queues take turns, and each leaves its unused share to the
        next.
        """
        options = self.options
        queues = self._queues("NOT paused")
        if self._newest is not None:
            newest = self._newest
            queues = [q for q in queues if taking.has_any_up_to(q, newest.get(q.id, 0))]
        taken: list[Taken] = []
        left = most
        for place in range(len(queues)):
            queue = queues[(turn + place) % len(queues)]
            most_bytes = options.max_bytes and math.ceil(options.max_bytes / len(queues))
            share = math.ceil(left / (len(queues) - place))
            found = taking.take(queue, self._timeout(queue), share, most_bytes)
            if found.parts:
                taken.append(found)
                left -= found.count
        return taken

    def _timeout(self, queue: OpenQueue) -> dt.timedelta:
        return dt.timedelta(seconds=self.options.visibility_timeout or queue.visibility_timeout)

    def _keep(self, batch: Batch) -> _Keeper:
        """Extend the leases of a batch for as long as the batch runs."""
        keeper = self._keeper or _Keeper(self.options.url)
        opened = self._opened(batch)
        keeper.keep(
            [
                (opened[each.queue_id], list(each), self._timeout(opened[each.queue_id]))
                for each in batch.deliveries
                if each.queue_id in opened
            ]
        )
        if self._keeper is None:
            self._keeper = keeper
            keeper.start()
        return keeper

    def _opened(self, batch: Batch) -> dict[int, OpenQueue]:
        """The queues of a batch that still exist, by id."""
        ids = [each.queue_id for each in batch.deliveries]
        found = open_queues(self._runner, "id = ANY(%(ids)s)", {"ids": ids})
        return {queue.id: queue for queue in found}

    def _acknowledge(self, batch: Batch) -> None:
        """Archive a batch that Spark has committed. Archiving it a second time changes nothing."""
        if batch.number == self._acknowledged:
            return
        if self._keeper is not None:
            self._keeper.keep([])
        opened = self._opened(batch)
        lost = sum(
            len(complete(opened[each.queue_id], list(each)).lost)
            for each in batch.deliveries
            if each.queue_id in opened
        )
        self._acknowledged = batch.number
        if self._batch is not None and self._batch.number <= batch.number:
            self._batch = None
        if lost:
            self._redelivered += lost
            warnings.warn(
                f"{lost} messages of batch {batch.number} were delivered to other consumers too: "
                f"their leases ran out while this stream was stopped or cut off. A longer "
                f"visibilityTimeout makes that rarer.",
                stacklevel=2,
            )

    # Tasks

    def _tasks(self, batch: Batch) -> list[Task]:
        names = columns.stored(self.schema.names)
        opened = self._opened(batch)
        for each in batch.deliveries:
            if each.queue_id not in opened:
                lost = DataLost(f"#{each.queue_id}", dropped=True)
                if self.options.fail_on_data_loss:
                    raise lost
                warnings.warn(str(lost), stacklevel=2)
        pieces = [
            (len(receipts), self._statement(opened[each.queue_id], receipts, names))
            for each in batch.deliveries
            if each.queue_id in opened
            for receipts in self._slices(opened[each.queue_id], each)
        ]
        tasks: list[Task] = []
        statements: list[str] = []
        filled = 0
        for size, statement in pieces:
            if statements and filled + size > self._per_task:
                tasks.append(Task(tuple(statements)))
                statements, filled = [], 0
            statements.append(statement)
            filled += size
        return [*tasks, Task(tuple(statements))] if statements else tasks

    @property
    def _per_task(self) -> int:
        return min(PER_TASK, self.options.rows_per_partition)

    def _slices(self, queue: OpenQueue, deliveries: Taken) -> list[list[Receipt]]:
        """Slices of about equal size. Messages of a FIFO group stay in one slice, in order."""
        receipts = sorted(deliveries)
        groups = taking.groups_of(queue, receipts) if deliveries.grouped else {}
        number = max(math.ceil(len(receipts) / self._per_task), self.options.min_partitions, 1)
        slices: list[list[Receipt]] = [[] for _ in range(number)]
        for place, receipt in enumerate(receipts):
            group = groups.get(receipt.id)
            chosen = place if group is None else zlib.crc32(group.encode())
            slices[chosen % number].append(receipt)
        return [each for each in slices if each]

    def _statement(
        self, queue: OpenQueue, receipts: Sequence[Receipt], names: Sequence[str]
    ) -> str:
        ids, read_cts, _ = zip(*receipts, strict=True)
        selected = columns.select(self.options.columns, names, f"{literal(queue.name)}::text")
        # Messages archived meanwhile are still read; deleted ones are not.
        return (
            f"SELECT {selected} FROM unnest('{{{_list(ids)}}}'::bigint[], "
            f"'{{{_list(read_cts)}}}'::integer[]) AS a (id, read_ct) "
            f"JOIN pgqueue_message_q{queue.id} m ON m.id = a.id ORDER BY m.id"
        )


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _runner(url: str) -> BareRunner:
    return BareRunner(planning.connect(url), {"EXACT_COUNT_LIMIT": COUNT_TO})


class _Keeper(threading.Thread):
    """Extends leases for as long as the process lives."""

    def __init__(self, url: str) -> None:
        super().__init__(name="pgqueue leases", daemon=True)
        self.url = url
        self._held: list[tuple[OpenQueue, list[Receipt], dt.timedelta]] = []
        self._every = 1.0
        self._over = False
        self._changed = threading.Event()
        # Held while extending or ending leases: both write the same rows.
        self._busy = threading.Lock()

    def keep(self, held: list[tuple[OpenQueue, list[Receipt], dt.timedelta]]) -> None:
        """Extend exactly these leases from now on."""
        with self._busy:
            self._held = held
            timeouts = [timeout.total_seconds() for _, _, timeout in held]
            self._every = min(timeouts, default=3600.0) / EXTENSIONS
        self._changed.set()

    def extend(self) -> None:
        with self._busy:
            if self._held:
                runner = _runner(self.url)
                with runner.session:
                    for queue, receipts, timeout in self._held:
                        set_vt(replace(queue, runner=runner), receipts, timeout)

    def run(self) -> None:
        while not self._over:
            if self._changed.wait(self._every):
                self._changed.clear()
                continue
            try:
                self.extend()
            except psycopg.Error as error:
                warnings.warn(
                    f"Leases could not be extended ({error}): others may get the messages too, "
                    f"if that stays so until the visibility timeout.",
                    stacklevel=2,
                )

    def end(self) -> None:
        self._over = True
        self._changed.set()
