"""One handler and its queue in this process: its leases, buffer, runs and counts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import DatabaseError

from django_pgqueue import signals
from django_pgqueue.acks import AckPolicy
from django_pgqueue.engine.read import grouped, reading
from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.engine.rows import Deliveries
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import GroupSetting, Message, Queue
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.tables.queue import reopened
from django_pgqueue.types import Receipt
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.batches import EndedBatches
from django_pgqueue.worker.buffer import AsyncBuffer, Buffer, FetchPlan
from django_pgqueue.worker.counts import Counts
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.running import Running

#: The wait before the next fetch while writes or receivers of signals fall behind, in seconds.
PAUSE_BEHIND = 0.01
#: The value of ``most_ended`` in capacities of the buffer, and its least value. With a lower limit
#: fast handlers wait, since messages end while a statement writes others.
_ENDED, _LEAST_ENDED = 4, 100


@dataclass(eq=False)
class Settlement:
    """The outcome of one message. ``ran``: whether a handler ran, so that an attempt counts."""

    message: Message
    #: An Ending (:mod:`.endings`).
    outcome: Any
    ran: bool


class Subscription:
    """One handler's queue. The loops and the workers share it."""

    def __init__(
        self,
        handler: Handler,
        queue: Queue,
        options: Options,
        awake: threading.Event | None = None,
        batches: EndedBatches | None = None,
    ) -> None:
        self.handler = handler
        self.queue = queue
        self.name = queue.name
        #: The names with which sends notify: the queue's own, and its source's.
        self.heard = frozenset(filter(None, (queue.name, queue.source and queue.source.name)))
        #: The handler's limit, or else the queue's.
        self.max_deliveries = handler.max_deliveries or queue.max_deliveries
        self.workers = options.workers or handler.workers
        self.fetch_batch_size = options.batch or handler.fetch_batch_size
        # A queue's timeout may be zero, but a handler needs time to work.
        self.vt = max(float(handler.visibility_timeout or queue.visibility_timeout), 0.1)
        #: The id of this process's row in the queue's database. The presence loop sets it.
        self.process_id: int | None = None
        #: Whether this process is asked to fetch nothing. The presence loop sets it.
        self.quiet = False
        #: Whether the queue or its groups have a limit or a rate. If so, nothing is buffered: a
        #: buffered message would hold a slot, and start later than the rate says.
        self.is_limited = False
        capacity = max(int(self.fetch_batch_size * handler.overfetch_factor), handler.run_size)
        target = min(capacity, self.workers * (handler.batch_size if handler.batch else 10))
        plan = FetchPlan(awake or threading.Event())
        buffer = AsyncBuffer if handler.is_async else Buffer
        self.buffer: Buffer = buffer(capacity, target, self.workers, plan)
        self.running: dict[int, Running] = {}
        #: The outcomes that the settler has not written yet, the oldest first.
        self.unwritten: deque[Settlement] = deque()
        #: How many of them, the oldest, a statement is writing now.
        self.writing = 0
        #: Nothing is fetched while so many messages have ended whose outcome is not written, or not
        #: announced.
        self.most_ended = max(capacity * _ENDED, _LEAST_ENDED)
        self.counts = Counts()
        #: The batches whose members have ended here.
        self.batches = batches or EndedBatches()
        #: Whether the handler cannot keep every limit.
        self._unlimited = handler.locked or handler.ack_policy is AckPolicy.ACK_FIRST
        if self._unlimited:
            self._refuse_limits()

    def refresh(self) -> Queue:
        """Look the queue up again: its settings may have changed.

        Raises QueueNotFound, and InvalidArgument for a limit that the handler cannot keep.
        """
        self.queue = Queue.objects.resolve(self.name, self.queue.alias)
        self.max_deliveries = self.handler.max_deliveries or self.queue.max_deliveries
        self.is_limited = self.queue.opened.is_limited
        if self._unlimited:
            self._refuse_limits()
        return self.queue

    def _refuse_limits(self) -> None:
        """Raise InvalidArgument for a limit or a rate that the handler cannot keep.

        Before, releases all buffered messages.
        """
        handler, queue = self.handler, self.queue
        if handler.locked and queue.source_id is not None:
            raise InvalidArgument(
                f"queue {self.name!r} is a subscription, and {handler.label} has locked=True, "
                f"which reads it in the handler's transaction: its other readers would wait. Use "
                f'ack_policy="TRANSACTIONAL" instead: the handler\'s work and the ack still commit '
                f"together"
            )
        if handler.locked and queue.opened.reads_must_commit:
            raise InvalidArgument(
                f"queue {self.name!r} has a limit, a rate or a group_rate, and {handler.label} has "
                f"locked=True, which cannot keep it: a message is read in the handler's "
                f'transaction. Use ack_policy="TRANSACTIONAL" instead: the handler\'s work and the '
                f"ack still commit together"
            )
        if handler.locked:
            return
        own = GroupSetting.objects.using(queue.alias).filter(queue=queue, limit__isnull=False)
        if queue.limit or queue.group_limit or (queue.has_slots and own.exists()):
            self.release(self.buffer.take_all())
            raise InvalidArgument(
                f"queue {self.name!r} or one of its groups has a limit, and {handler.label} "
                f"has ack_policy ACK_FIRST, which cannot keep it: a message leaves the queue, and "
                f"its slot, before its handler starts. Choose another ack_policy, or remove limit "
                f"and group_limit. A rate holds"
            )

    @property
    def idle(self) -> int:
        """How many more messages handlers can start on now."""
        running = sum(len(each.messages) for each in tuple(self.running.values()))
        return max(0, self.workers * self.handler.run_size - running - len(self.buffer))

    def lease(
        self, qty: int, *, behind: Sequence[Message] = (), batched: bool = True
    ) -> list[Message]:
        """Lease up to ``qty`` messages; with ``behind``, only followers of these heads."""
        act: Callable[..., Deliveries] = partial(reading.lease, batched=batched)
        if behind:
            act = partial(grouped.follow, heads=[head.receipt for head in behind])
        options = {
            "qty": qty,
            "vt": self.vt,
            "max_deliveries": self.max_deliveries,
            "process_id": self.process_id,
        }
        started = time.monotonic()
        opened = self.queue.opened
        try:
            found = act(opened, **options)
        except DatabaseError as error:
            opened = reopened(opened, error)
            found = act(opened, **options)
        messages = Message.from_deliveries(opened, found)
        # The leases count from before the read, so that none ends earlier than the process expects.
        for message in messages:
            message.lease_until = started + self.vt
            if message.expires_after_lease is not None:
                message.start_until = message.lease_until + message.expires_after_lease
        self.counts.add(
            leased=len(messages), exhausted=len(found.exhausted), expired=len(found.expired)
        )
        if found.exhausted or found.expired:
            self.batches.note_queue(self.queue.alias, self.queue.pk)
        return messages

    def fall_asleep(self, sleep: Sleep) -> tuple[float, float]:
        """Begin a :class:`~django_pgqueue.engine.read.sleep.Sleep`; returns what it returns."""
        return sleep.begin(
            self.queue.opened,
            self.handler.max_fetch_interval,
            listening=self.buffer.plan.listening,
        )

    def extend(self, messages: Sequence[Message], seconds: float) -> set[Receipt | int]:
        """Extend leases to ``seconds`` from now. Returns the receipts of lost leases."""
        now = time.monotonic()
        receipts = [message.receipt for message in messages]
        lost = set(Message.objects.set_vt(self.queue, receipts, seconds).lost)
        for message in messages:
            if message.receipt not in lost:
                message.lease_until = now + seconds
        return lost

    def end(self, running: Running) -> float:
        """Record that a handler has ended. Returns its run time in seconds."""
        self.running.pop(id(running), None)
        seconds = time.monotonic() - running.started
        self.buffer.adapt(seconds / len(running.messages))
        if self.counts.keeps_history:
            self.counts.ended.append((running.messages, seconds))
        return seconds

    def release(self, messages: Sequence[Message]) -> None:
        """Release messages that have not started, and their followers, without counting a delivery.

        The messages are due at once. After a database error it is unknown whether they were
        released, so no handler may start on them, and their leases expire.
        """
        groups = self.buffer.groups
        # No follower may start before its head is delivered again.
        messages = [*messages, *(each for m in messages for each in groups.take_followers(m))]
        if not messages:
            return
        for message in messages:
            groups.promote(message)
        self.counts.add(fetched=-len(messages))
        bound_to(self.queue).release([message.receipt for message in messages])
        send(signals.messages_released, self.name, count=len(messages))

    def tally(self) -> dict[Any, float]:
        """Everything counted so far, for the history."""
        return self.counts.tally()

    def report(self) -> dict[str, int]:
        """The numbers of buffered messages, running handlers, and ended messages by outcome."""
        counts = self.counts
        return {
            "buffered": len(self.buffer) + len(self.buffer.groups),
            "running": len(self.running),
            "completed": counts.completed,
            "retried": counts.retried,
            "failed": counts.failed + counts.exhausted,
            "cancelled": counts.cancelled,
            "expired": counts.expired,
            "lost": counts.lost,
        }

    @property
    def busy(self) -> bool:
        """Whether this process holds unsettled messages, or is fetching."""
        plan, messages = self.buffer.plan, self.buffer.messages
        held = plan.fetching or messages or self.running or self.unwritten
        return bool(held) or self.counts.fetched > self.counts.settled
