"""One handler and its queue in this process: what is buffered, what runs, and the counters."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.handlers import Handler
from django_pgqueue.histograms import bucket
from django_pgqueue.models import Message, Queue
from django_pgqueue.worker.lines import Lines
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.running import Running

__all__ = ["Subscription"]

#: No more is buffered than handlers will have started within this many seconds.
HORIZON = 2.0

#: The subscription that this thread reads for.
_reading = threading.local()


class Subscription:
    """The state that the loops share.

    Deques and dicts are touched one step at a time, which the interpreter makes atomic: a lock for
    each message would cost more than many a handler.
    """

    def __init__(self, handler: Handler, queue: Queue, options: Options) -> None:
        self.handler = handler
        self.queue = queue
        self.workers = options.workers or handler.workers
        self.fetch_batch_size = options.batch or handler.fetch_batch_size
        # A queue may have a timeout of zero; a consumer needs a moment to work in.
        self.vt = max(float(handler.visibility_timeout or queue.visibility_timeout), 0.1)
        self.capacity = max(int(self.fetch_batch_size * handler.overfetch_factor), handler.run_size)
        self.buffer: deque[Message] = deque()
        #: Of FIFO groups of which one message is buffered or runs.
        self.lines = Lines()
        self.running: dict[int, Running] = {}
        self.available = threading.Condition()
        self.idle = 0
        self.stopping = False
        #: The id of this process's row in the queue's database, once it is registered.
        self.process_id: Callable[[], int | None] = lambda: None
        #: Fetch more: the buffer is low; or a FIFO group may have got a new head.
        self.on_low: Callable[[], None] = lambda: None
        self.on_group: Callable[[], None] = lambda: None
        self.on_filled: Callable[[], None] | None = None
        #: How long a handler takes for a message, in seconds, exponentially weighted.
        self.pace: float | None = None
        #: Counts the notifications, for workers that read by themselves.
        self.wakes = 0
        #: How many may be buffered: until the pace is known, only what can start at once.
        most = handler.batch_size if handler.batch else 10
        self.target = min(self.capacity, self.workers * most)
        #: A fetch is under way: its messages are neither buffered nor running yet.
        self.fetching = False
        #: Leases ever taken, those given back included.
        self.leased = 0
        self.fetched = self.started = 0
        self.completed = self.retried = self.failed = self.lost = 0
        #: Messages that failed at a read: they had been delivered as often as allowed.
        self.exhausted = 0
        self._counting = threading.Lock()
        #: Where history is kept: runs that have ended and are not added up, with their seconds;
        #: messages by the bucket of their wait and of their run time; the seconds of handlers.
        self._keeps_history = settings.HISTORY_SECONDS is not None
        self._ended: deque[tuple[Running, float]] = deque()
        self._waits: defaultdict[int, int] = defaultdict(int)
        self._runs: defaultdict[int, int] = defaultdict(int)
        self._busy = 0.0

    @property
    def name(self) -> str:
        return self.queue.name

    def counts(self) -> dict[str, int]:
        """The messages that this process holds, and the outcomes of the others."""
        return {
            "buffered": len(self.buffer) + len(self.lines),
            "running": len(self.running),
            "completed": self.completed,
            "retried": self.retried,
            "failed": self.failed + self.exhausted,
            "lost": self.lost,
        }

    def tally(self) -> dict[Any, float]:
        """Everything counted so far, for the history: outcomes, waits and run times by bucket, and
        the seconds in handlers."""
        self.add_up()
        with self._counting:
            waits = {("waits", number): count for number, count in self._waits.items()}
            runs = {("runs", number): count for number, count in self._runs.items()}
            counts: dict[Any, float] = {"busy": self._busy, **waits, **runs}
        for name in ("completed", "retried", "failed", "exhausted", "lost"):
            counts[name] = getattr(self, name)
        return counts

    def lease(self, qty: int, **options: Any) -> list[Message]:
        """Lease up to ``qty`` messages; ``options`` are those of Message.objects.lease()."""
        _reading.subscription = self
        try:
            return self._leased(Message.objects.lease, qty=qty, **options)
        finally:
            _reading.subscription = None

    def follow(self, heads: Sequence[Message], qty: int) -> list[Message]:
        """Lease up to ``qty`` messages that wait behind heads of FIFO groups just leased."""
        receipts = [head.receipt for head in heads if head.group_key is not None]
        if qty < 1 or not receipts:
            return []
        options = {"qty": qty, "process_id": self.process_id()}
        return self._leased(Message.objects.follow, receipts, **options)

    def _leased(
        self, act: Callable[..., list[Message]], *args: Any, **options: Any
    ) -> list[Message]:
        limits = {"vt": self.vt, "max_deliveries": self.handler.max_deliveries}
        started = time.monotonic()
        messages = act(self.queue, *args, **limits, **options)
        # Counted from before the read: no lease is believed to last longer than it does.
        for message in messages:
            message.lease_until = started + self.vt
        self.count(leased=len(messages))
        return messages

    def room(self) -> int:
        """How many more messages may be fetched now."""
        return max(0, min(self.fetch_batch_size, self.target - len(self.buffer)))

    def room_in_lines(self) -> int:
        """How many more messages may wait behind others of their FIFO groups.

        Not a part of :meth:`room`: a long line of one group keeps no other group out.
        """
        return max(0, min(self.fetch_batch_size, self.target - len(self.lines)))

    def fill(self, messages: Sequence[Message], followers: Sequence[Message] = ()) -> None:
        """Hand messages to the workers; each follower when the one before it is settled."""
        self.count(lost=len(self.lines.begin(messages, followers)))
        self._hand_out(messages)

    def go_on(self, settled: Iterable[Message]) -> None:
        """Hand on the messages behind settled ones of FIFO groups."""
        following = [self.lines.end(message) for message in settled]
        if found := [message for message in following if message is not None]:
            self._hand_out(found)
        if len(found) < len(following):
            # Groups may have a new head.
            self.on_group()

    def _hand_out(self, messages: Sequence[Message]) -> None:
        self.buffer.extend(messages)
        if self.on_filled is not None:
            self.on_filled()
        elif self.idle:
            with self.available:
                self.available.notify(len(self.buffer))

    def take(self, most: int = 1) -> list[Message]:
        """Wait for up to ``most`` messages; none when the process stops."""
        while not self.stopping:
            taken = self.take_now(most)
            if taken:
                return taken
            with self.available:
                self.idle += 1
                if not self.buffer and not self.stopping:
                    self.available.wait(1.0)
                self.idle -= 1
        return []

    def take_now(self, most: int = 1) -> list[Message]:
        """Up to ``most`` buffered messages, without waiting; none when the process stops."""
        taken = [] if self.stopping else self._pop(most)
        if taken and 2 * len(self.buffer) < self.target:
            self.on_low()
        return taken

    def begin(self, messages: list[Message], thread: int | None = None) -> Running:
        """Note that a handler starts on these messages."""
        running = Running(messages, thread)
        self.started += len(messages)
        self.running[id(running)] = running
        return running

    def end(self, running: Running) -> float:
        """Note that a handler has ended; returns its time in seconds."""
        self.running.pop(id(running), None)
        seconds = time.monotonic() - running.started
        each = seconds / len(running.messages)
        self.pace = each if self.pace is None else self.pace * 0.9 + each * 0.1
        startable = self.workers + int(self.workers * HORIZON / max(self.pace, 1e-6))
        self.target = min(self.capacity, startable)
        if self._keeps_history:
            self._ended.append((running, seconds))
        return seconds

    def add_up(self) -> None:
        """Count how long the messages of runs waited for their first delivery, and took.

        Called once for many messages: a lock that the workers take for each costs 15 % of the rate
        of a handler that does nothing.
        """
        with self._counting, contextlib.suppress(IndexError):
            while True:
                running, seconds = self._ended.popleft()
                self._busy += seconds
                self._runs[bucket(seconds)] += len(running.messages)
                for message in running.messages:
                    if (waited := message.waited) is not None:
                        self._waits[bucket(waited)] += 1

    def take_all(self) -> list[Message]:
        """Take back everything that no handler has started on."""
        return self._pop(sys.maxsize) + self.lines.leave()

    def _pop(self, most: int) -> list[Message]:
        taken: list[Message] = []
        with contextlib.suppress(IndexError):
            while len(taken) < most:
                taken.append(self.buffer.popleft())
        return taken

    def remove(self, message: Message) -> bool:
        """Take one message back, if no handler has started on it."""
        try:
            self.buffer.remove(message)
        except (ValueError, IndexError):
            # A worker has it; or took another one while we looked, and we look again later.
            return False
        return True

    def close(self) -> None:
        """End every worker that waits."""
        self.stopping = True
        with self.available:
            self.available.notify_all()
        if self.on_filled is not None:
            self.on_filled()

    def count(self, **more: int) -> None:
        """Add to the counters; safe in any thread."""
        with self._counting:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    @property
    def settled(self) -> int:
        """Messages that came to an outcome here, or were lost to other readers."""
        return self.completed + self.retried + self.failed + self.lost

    def give_back(self, messages: Sequence[Message]) -> None:
        """Give back what no handler has started on: due at once, the delivery uncounted.

        After an error it is unknown whether that was written, so none of them may be started
        any more; their leases run out.
        """
        # Behind one that goes back none may start.
        messages = [*messages, *(each for m in messages for each in self.lines.behind(m))]
        if not messages:
            return
        for message in messages:
            self.lines.end(message)
        self.count(fetched=-len(messages))
        Message.objects.release(self.queue, [message.receipt for message in messages])
        signals.messages_released.send_robust(self.name, count=len(messages))

    @property
    def busy(self) -> bool:
        """Whether this process holds a message that is not settled, or is about to."""
        return bool(self.fetching or self.buffer or self.running or self.fetched > self.settled)


def _count_exhausted(sender: str, receipts: Sequence[object], **kwargs: Any) -> None:
    subscription = getattr(_reading, "subscription", None)
    if subscription is not None and subscription.name == sender:
        subscription.count(exhausted=len(receipts))


signals.messages_exhausted.connect(_count_exhausted, dispatch_uid="pgqueue-count-exhausted")
