"""One handler and its queue in this process: what is buffered, what runs, and how it goes."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_pgqueue import signals
from django_pgqueue.acks import Outcome
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, Queue
from django_pgqueue.runtime.options import Options
from django_pgqueue.types import Receipt

__all__ = ["Running", "Subscription"]

#: No more is buffered than handlers will have started within so many seconds.
HORIZON = 2.0


@dataclass(eq=False)
class Running:
    """A handler run: one message, or the batch it was given."""

    messages: list[Message]
    thread: int | None = None
    started: float = field(default_factory=time.monotonic)
    #: What the handler said itself, by message.ack() and the like.
    said: dict[int, Outcome] = field(default_factory=dict)
    on_said: Callable[[Running, Message, Outcome], None] | None = None
    #: How to end it, on an event loop.
    cancel: Callable[[], None] | None = None
    #: The connections of its thread, if its time is limited.
    connections: Sequence[Any] = ()
    #: The handler is about to start; then, that it has returned or raised.
    armed: bool = False
    finished: bool = False
    failed: bool = False
    #: All of its messages were cancelled.
    cancelled: bool = False
    #: Its time is over; then, whether the interrupt is on its way.
    timed_out: bool = False
    interrupted: bool = False
    #: Receipts that were found lost when it was to be settled in its own transaction.
    lost: list[Receipt | int] = field(default_factory=list)
    #: It was settled in its own transaction.
    settled: bool = False
    #: One of the two, under the lock: it came to its end, or it was given up.
    concluded: bool = False
    abandoned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, message: Message, outcome: Outcome) -> None:
        """Take what the handler says of a message; the first word counts."""
        if message.id not in self.said:
            self.said[message.id] = outcome
            if self.on_said is not None:
                self.on_said(self, message, outcome)


class Subscription:
    """The state that the loops share. Deques and dicts are touched one step at a time, which
    the interpreter makes atomic; a lock a message would cost more than the handler of many."""

    def __init__(self, handler: Handler, queue: Queue, options: Options) -> None:
        self.handler = handler
        self.queue = queue
        self.workers = options.workers or handler.max_workers or (100 if handler.is_async else 4)
        self.fetch_batch_size = options.batch or handler.fetch_batch_size
        # A queue may have a timeout of zero; a consumer needs a moment to work in.
        self.vt = max(float(handler.visibility_timeout or queue.visibility_timeout), 0.1)
        self.capacity = max(
            int(self.fetch_batch_size * handler.overfetch_factor),
            handler.batch_size if handler.batch else 1,
        )
        self.buffer: deque[Message] = deque()
        self.running: dict[int, Running] = {}
        self.available = threading.Condition()
        self.idle = 0
        self.stopping = False
        #: The row of this process in the queue's database, once it is registered.
        self.process_id: Callable[[], int | None] = lambda: None
        self.on_low: Callable[[], None] = lambda: None
        self.on_filled: Callable[[], None] | None = None
        #: How long a handler takes for a message, in seconds, exponentially weighted.
        self.pace: float | None = None
        #: Counts the notifications, for workers that read by themselves.
        self.wakes = 0
        #: How many may be buffered: until the pace is known, only what can start at once.
        most = handler.batch_size if handler.batch else 10
        self.target = min(self.capacity, self.workers * most)
        self.fetched = self.started = 0
        self.completed = self.retried = self.failed = self.lost = 0
        self._counting = threading.Lock()

    @property
    def name(self) -> str:
        return self.queue.name

    def counts(self) -> dict[str, int]:
        """What this process holds of the queue, and what has become of the rest."""
        return {
            "buffered": len(self.buffer),
            "running": len(self.running),
            "completed": self.completed,
            "retried": self.retried,
            "failed": self.failed,
            "lost": self.lost,
        }

    def room(self) -> int:
        """How many more messages may be fetched now."""
        return max(0, min(self.fetch_batch_size, self.target - len(self.buffer)))

    def fill(self, messages: Iterable[Message]) -> None:
        """Hand messages to the workers."""
        self.buffer.extend(messages)
        if self.on_filled is not None:
            self.on_filled()
        elif self.idle:
            with self.available:
                self.available.notify(len(self.buffer))

    def take(self, most: int = 1) -> list[Message]:
        """Up to ``most`` messages as soon as there are any; none when it is time to stop."""
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
        """Up to ``most`` buffered messages, without waiting; none when it is time to stop."""
        taken = [] if self.stopping else self._pop(most)
        if taken and 2 * len(self.buffer) < self.target:
            self.on_low()
        return taken

    def begin(self, messages: list[Message], thread: int | None = None) -> Running:
        """A handler starts on these."""
        running = Running(messages, thread)
        self.started += len(messages)
        self.running[id(running)] = running
        return running

    def end(self, running: Running) -> float:
        """It has ended; returns how long it took, in seconds."""
        self.running.pop(id(running), None)
        seconds = time.monotonic() - running.started
        each = seconds / len(running.messages)
        self.pace = each if self.pace is None else self.pace * 0.9 + each * 0.1
        startable = self.workers + int(self.workers * HORIZON / max(self.pace, 1e-6))
        self.target = min(self.capacity, startable)
        return seconds

    def take_all(self) -> list[Message]:
        """Take back everything that no handler has started on."""
        return self._pop(sys.maxsize)

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
        """Let every waiting worker go."""
        self.stopping = True
        with self.available:
            self.available.notify_all()
        if self.on_filled is not None:
            self.on_filled()

    def count(self, **more: int) -> None:
        """Add to the counters, which several threads do at a time."""
        with self._counting:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    @property
    def settled(self) -> int:
        """How many messages have come to an outcome here, or were lost to others."""
        return self.completed + self.retried + self.failed + self.lost

    def give_back(self, messages: Sequence[Message]) -> None:
        """Give back what no handler has started on: due at once, the delivery uncounted.

        When that fails nobody knows whether it was done, so none of them may be started any
        more; their leases run out.
        """
        if not messages:
            return
        self.count(fetched=-len(messages))
        Message.objects.release(self.queue, [message.receipt for message in messages])
        signals.messages_released.send_robust(self.name, count=len(messages))

    @property
    def held(self) -> int:
        """Messages in this process that are buffered or running."""
        return len(self.buffer) + sum(len(run.messages) for run in list(self.running.values()))
