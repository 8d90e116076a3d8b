"""A queue as a stream: leases messages, passes their rows to the sink, and archives a batch after
Spark has committed it.

An offset names the deliveries in its batch. Spark stores the offset before it runs the batch.
A killed driver therefore delivers the same messages again when it restarts from its checkpoint: at
least once, and exactly once into a sink that recognises a batch by its number. If the driver never
comes back, no message is lost: its leases expire, and other consumers get the messages. A batch
that fails again and again is served in part (:mod:`.serving`).
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from django_pgqueue.bare import open_queues
from django_pgqueue.engine.metrics.measuring import metrics
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.settle.outcomes import complete, fail, retry
from django_pgqueue.engine.settle.settling import by_receipts, hold
from django_pgqueue.types import Receipt
from pyspark_pgqueue.consume import refusals, serving, taking
from pyspark_pgqueue.consume.batch import Batch, Held
from pyspark_pgqueue.consume.leases import Keeper
from pyspark_pgqueue.consume.serving import Serving
from pyspark_pgqueue.consume.taking import Taken
from pyspark_pgqueue.errors import DataLost, InvalidOption
from pyspark_pgqueue.source import columns, database
from pyspark_pgqueue.source.columns import literal
from pyspark_pgqueue.source.options import Options
from pyspark_pgqueue.source.planning import Task
from pyspark_pgqueue.source.stream import Stream

#: Messages in a batch unless maxOffsetsPerTrigger is set. All of them are in flight at once.
USUAL_BATCH = 10_000
#: Maximum messages in a task, so that a batch of the usual size has several tasks.
PER_TASK = 2_500
#: Seconds between two reads of an empty queue; Spark asks every 10 ms.
IDLE = 0.1
#: Seconds between two counts of the backlog for the query's progress.
COUNT_EVERY = 5.0


class QueueStream(Stream):
    """A queue as a stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._keeper: Keeper | None = None
        #: The leased batch, which part of it is served, and the last acknowledged batch's number.
        self._batch: Batch | None = None
        self._serving = Serving()
        self._acknowledged: int | None = None
        self._suspects = 0
        #: With Trigger.AvailableNow: the newest message of each queue when the query began.
        self._newest: dict[int, int] | None = None
        self._looked_at = float("-inf")
        self._counted_at = float("-inf")
        self._backlog: dict[str, Any] = {}
        self._redelivered = 0

    # Called by Spark

    def initialOffset(self) -> dict[str, Any]:
        server = database.server(self._connection)
        if server.is_replica:
            raise InvalidOption("A standby cannot lease messages: consume from the primary.")
        return Batch(system=server.system, stream=uuid.uuid4().hex).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows or USUAL_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:
        self._newest = {queue.id: taking.newest(queue) for queue in self._queues()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        last = Batch.parse(start)
        self._check_batch(last)
        # Spark asks for the next batch after it has committed the previous one.
        self._acknowledge(last)
        if self._batch is not None:
            return self._batch.as_dict()
        if self._newest is None and not self._may_look():
            return start
        # A batch is always limited, since all of its messages are in flight.
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else USUAL_BATCH
        if self._suspects:
            most = min(most, math.ceil(self._suspects / 2))
        taken = self._lease(most, last.number)
        if not taken:
            self._looked_at = monotonic()
            return start
        self._batch = replace(
            last, number=last.number + 1, deliveries=tuple(taken), suspects=self._suspects
        )
        self._serving = Serving()
        self._keep(self._held(self._batch, 1))
        return self._batch.as_dict()

    def _may_look(self) -> bool:
        """Whether to read now: ``IDLE`` and the wait for enough messages are both over."""
        if monotonic() - self._looked_at < IDLE:
            return False
        if self._suspects or self._patience.is_over(lambda most: self._readable()):
            return True
        self._looked_at = monotonic()
        return False

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        batch = Batch.parse(end)
        if batch.number == Batch.parse(start).number:
            return []
        if self._batch is None:
            # Spark delivers this batch again after a restart.
            self._check_batch(batch)
            self._batch, self._serving = batch, self._serve_again(batch)
            self._keep(self._held(batch, self._serving.tries))
        return [InputPartition(task) for task in self._tasks(batch)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        task: Task | None = partition and partition.value
        if task is not None and task.first:
            first = task.first.format(written=serving.written())
            partition = InputPartition(replace(task, first=first))
        return super().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._acknowledge(Batch.parse(end))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the backlog in place of an offset: Spark shows it in the query's progress."""
        if monotonic() - self._counted_at >= COUNT_EVERY:
            found = [metrics(queue) for queue in self._queues()]
            oldest = max((each.oldest_age or 0.0 for each in found), default=0.0)
            self._backlog = {
                "lagMessages": sum(each.visible + each.waiting for each in found),
                "lagSeconds": round(oldest, 1),
            }
            self._counted_at = monotonic()
        return {**self._backlog, "redelivered": self._redelivered}

    def stop(self) -> None:
        """Stop extending the leases, but do not release them.

        Only the next start learns from Spark's log whether the last batch was committed.
        """
        if self._keeper is not None:
            self._keeper.end()
        super().stop()

    # Leases

    def _queues(self, condition: str = "true") -> list[OpenQueue]:
        """The chosen queues that meet a condition."""
        chosen = database.queues(self._connection, self.options, may_be_dropped=True)
        there = {name.lower() for _, name in chosen}
        for name in self.options.subscribe:
            if name.lower() not in there:
                self._lost(DataLost(name, dropped=True))
        ids = [pk for pk, _ in chosen]
        return open_queues(self._runner, f"id = ANY(%(ids)s) AND {condition}", {"ids": ids})

    def _readable(self) -> int:
        found = [metrics(queue) for queue in self._queues("NOT paused")]
        return sum(each.visible + each.waiting for each in found)

    def _check_batch(self, batch: Batch) -> None:
        if self._acknowledged is None:
            self._check_server(batch.system, database.server(self._connection))

    def _lease(self, most: int, turn: int) -> list[Taken]:
        """Lease up to ``most`` messages, an equal share from each queue.

        Unused shares go to later queues. ``turn`` rotates the order of the queues.
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

    def _held(self, batch: Batch, tries: int) -> list[Held]:
        """A batch's deliveries in the queues that still exist, with the receipts of this try."""
        ids = [each.queue_id for each in batch.deliveries]
        found = open_queues(self._runner, "id = ANY(%(ids)s)", {"ids": ids})
        opened = {queue.id: queue for queue in found}
        held = []
        for each in batch.deliveries:
            if (queue := opened.get(each.queue_id)) is not None:
                receipts = [Receipt(r.id, r.read_ct + tries - 1, r.read_at) for r in sorted(each)]
                held.append(Held(queue, each.grouped, self._timeout(queue), receipts))
        return held

    def _keep(self, held: list[Held]) -> None:
        """Extend the leases of a batch for as long as the batch runs."""
        if self._keeper is None:
            self._keeper = Keeper(self.options.url)
            self._keeper.start()
        self._keeper.keep(held)

    def _serve_again(self, batch: Batch) -> Serving:
        """Count one more delivery of the batch's messages, and choose how many to serve."""
        with self._runner.transaction():
            before = serving.load(self._connection, batch.stream, batch.number)
            held = self._held(batch, before.tries)
            total = sum(len(each.receipts) for each in held)
            served = total if before.served is None else before.served
            after = Serving(before.tries + 1, before.served)
            if held:
                queue, first = held[0].queue, held[0].receipts[0]
                most = queue.max_deliveries
                if served == 1 and first.read_ct >= most:
                    self._dead_letter(queue, first)
                    served = 0
                planned = served and serving.part(total, after.tries, first.read_ct + 1, most)
                after = replace(after, planned=planned, served=served and before.served)
            for each in held:
                hold(each.queue, each.receipts, each.timeout, more=1)
            serving.store(self._connection, batch.stream, batch.number, after)
        return after

    def _dead_letter(self, queue: OpenQueue, receipt: Receipt) -> None:
        """Dead-letter a message that has used up its deliveries.

        In its last delivery it was the only message served.
        """
        error = refusals.error_of(self._connection, receipt.id)
        told = f"the last error: {error}" if error else "see the driver's log for the error"
        text = (
            f"gave up after {receipt.read_ct} deliveries: the batch failed even when it had only "
            f"this message; {told}"
        )
        fail(queue, {receipt: text}, reason="max_deliveries")

    def _acknowledge(self, batch: Batch) -> None:
        """Archive a batch that Spark has committed, and release the part that was not served.
        A second call changes nothing.
        """
        if batch.number == self._acknowledged:
            return
        if self._keeper is not None:
            self._keeper.keep([])
        self._suspects = 0
        if batch.deliveries:
            with self._runner.transaction():
                self._settle(batch)
        self._acknowledged = batch.number
        if self._batch is not None and self._batch.number <= batch.number:
            self._batch = None

    def _settle(self, batch: Batch) -> None:
        done = serving.load(self._connection, batch.stream, batch.number)
        held = self._held(batch, done.tries)
        total = sum(len(each.receipts) for each in held)
        served = total if done.served is None else done.served
        if served:  # 0: the message at fault was dead-lettered
            self._suspects = total - served or max(batch.suspects - total, 0)
        if done.acknowledged:
            return
        lost = 0
        for queue, grouped, timeout, receipts in held:
            mine, rest = receipts[:served], receipts[served:]
            served -= len(mine)
            if grouped:  # re-lease followers that went back to waiting when their leases expired
                hold(queue, mine, timeout)
            refused = refusals.acknowledged(self._connection, (r.id for r in mine))
            gone: list[Any] = complete(queue, [r for r in mine if r.id not in refused]).lost
            if errors := {r: refused[r.id] for r in mine if r.id in refused}:
                if self.options.on_error == "retry":
                    gone += retry(
                        queue, dict.fromkeys(errors, timeout.total_seconds()), errors=errors
                    ).lost
                else:
                    gone += fail(queue, errors).lost
            lost += len(gone) - len(taking.archived(queue, gone))
            by_receipts(queue, "release", rest, {"deliveries": done.tries})
            if refused or done.tries > 1:
                # A second call must not complete messages that were only released.
                done = replace(done, acknowledged=True)
        if done.acknowledged:
            serving.store(self._connection, batch.stream, batch.number, done)
        if lost:
            self._redelivered += lost
            warnings.warn(
                f"{lost} messages of batch {batch.number} are delivered again: their leases "
                f"expired while this stream was stopped or disconnected, and another reader leased "
                f"them or the head of their group. Raise visibilityTimeout to make this rarer.",
                stacklevel=4,
            )

    # Tasks

    def _tasks(self, batch: Batch) -> list[Task]:
        names = columns.stored(self.schema.names)
        held = self._held(batch, self._serving.tries)
        there = {each.queue.id for each in held}
        for taken in batch.deliveries:
            if taken.queue_id not in there:
                self._lost(DataLost(f"#{taken.queue_id}", dropped=True))
        left, filled = self._serving.planned, 0
        shares: list[list[str]] = [[]]
        for each in held:
            served = each.receipts[:left]
            left = left and left - len(served)
            for receipts in self._slices(each._replace(receipts=served)):
                if filled and filled + len(receipts) > self._per_task:
                    shares.append([])
                    filled = 0
                shares[-1].append(self._statement(each.queue, receipts, names))
                filled += len(receipts)
        first = serving.reading(batch.stream, batch.number, self._serving)
        return [Task(tuple(statements), first=first) for statements in filter(None, shares)]

    @property
    def _per_task(self) -> int:
        return min(PER_TASK, self.options.rows_per_partition)

    def _slices(self, held: Held) -> list[list[Receipt]]:
        """Slices of about equal size. Messages of a FIFO group stay in one slice, in order."""
        queue, grouped, _, receipts = held
        groups = taking.groups_of(queue, receipts) if grouped else {}
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
        ids = ",".join(str(receipt.id) for receipt in receipts)
        read_cts = ",".join(str(receipt.read_ct) for receipt in receipts)
        selected = columns.select(self.options.columns, names, f"{literal(queue.name)}::text")
        # Messages archived meanwhile are still read; deleted ones are not.
        return (
            f"SELECT {selected} FROM unnest('{{{ids}}}'::bigint[], "
            f"'{{{read_cts}}}'::integer[]) AS a (id, read_ct) "
            f"JOIN {queue.message_table} m ON m.id = a.id ORDER BY m.id"
        )
