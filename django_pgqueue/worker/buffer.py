"""The buffer: leased messages that wait for a worker, and the plan of the next fetch."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from django_pgqueue.models import Message
from django_pgqueue.worker.groups import Groups

#: No more is buffered than handlers will have started within this many seconds.
HORIZON = 2.0
#: The longest sleep of a worker that waits for a message, in seconds.
_SLEEP = 1.0


class FetchPlan:
    """When a subscription is fetched for next. ``awake`` wakes the fetch loop."""

    def __init__(self, awake: threading.Event) -> None:
        self.awake = awake
        self.at = 0.0
        self.wait = 0.0
        #: There was a notification since the last fetch began.
        self.notified = False
        #: The last fetch brought a suspect: more may follow, and each runs alone.
        self.suspicious = False
        #: The last fetch came back full, so the next one will find messages too.
        self.more = False
        #: A fetch is under way: its messages are neither buffered nor running yet.
        self.fetching = False
        #: Failed fetches in a row.
        self.failures = 0

    def hurry(self) -> None:
        """Fetch at once: there may be new messages."""
        # In this order: the fetch thread, when it plans at this moment, looks at the flag last.
        self.notified = True
        self.at = self.wait = 0.0
        self.awake.set()


class Buffer:
    """The leased messages of a subscription that no handler has started on.

    The loops share it. The deque is touched one step at a time, which the interpreter makes
    atomic: a lock for each message would cost more than many a handler.
    """

    def __init__(self, capacity: int, target: int, workers: int, plan: FetchPlan) -> None:
        self.capacity = capacity
        #: How many may be buffered: until the pace is known, only what can start at once.
        self.target = target
        self.plan = plan
        #: The FIFO groups of which a message is buffered or running.
        self.groups = Groups()
        #: Tells the workers to end.
        self.stopping = False
        #: Counts the notifications, for workers that read by themselves.
        self.notices = 0
        self.messages: deque[Message] = deque()
        self._workers = workers
        #: How long a handler takes for a message, in seconds, exponentially weighted.
        self._pace: float | None = None
        self._filled = threading.Condition()
        self._idle = 0

    def __len__(self) -> int:
        """The messages that a worker can start on."""
        return len(self.messages)

    def room(self, most: int) -> int:
        """How many more messages may be fetched, up to ``most``."""
        return max(0, min(most, self.target - len(self.messages)))

    def room_for_followers(self, most: int) -> int:
        """How many more followers of FIFO groups may be leased.

        Not a part of :meth:`room`: a long group keeps no other group out.
        """
        return max(0, min(most, self.target - len(self.groups)))

    def put(self, messages: Sequence[Message], followers: Sequence[Message] = ()) -> int:
        """Hand messages to the workers; each follower when the one before it is settled.

        Returns how many older followers of the same groups are lost.
        """
        heads = [message for message in messages if message.group_key is not None]
        lost = len(self.groups.add(heads, followers)) if heads else 0
        self.messages.extend(messages)
        if self._idle:
            self._wake()
        return lost

    def promote(self, settled: Sequence[Message]) -> None:
        """Pass the next messages of FIFO groups to the workers, after settled ones."""
        following = [self.groups.promote(message) for message in settled]
        if found := [message for message in following if message is not None]:
            self.messages.extend(found)
            if self._idle:
                self._wake()
        if len(found) < len(following) and 2 * len(self.messages) < self.target:
            # Groups may have a new head.
            self.plan.hurry()

    def take(self, most: int = 1, *, wait: bool = False) -> list[Message]:
        """Up to ``most`` messages; none when the process stops.

        With ``wait`` it waits for the first.
        """
        taken: list[Message] = []
        while not self.stopping:
            with contextlib.suppress(IndexError):
                while len(taken) < most:
                    taken.append(self.messages.popleft())
            if taken or not wait:
                break
            with self._filled:
                self._idle += 1
                if not self.messages and not self.stopping:
                    self._filled.wait(_SLEEP)
                self._idle -= 1
        plan = self.plan
        if taken and plan.more and 2 * len(self.messages) < self.target:
            plan.at = 0.0
            if not plan.awake.is_set():
                plan.awake.set()
        return taken

    def take_back(self) -> list[Message]:
        """Remove and return all messages, including those behind others of their groups."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.messages.popleft())
        return taken + self.groups.take()

    def take_stale(self, is_stale: Callable[[Message], bool]) -> list[Message]:
        """Remove and return stale messages, and those behind them in their groups."""
        stale = self.groups.take(is_stale)
        for message in list(self.messages):
            if is_stale(message):
                # A worker took it, or changed the deque meanwhile: a later call tries again.
                with contextlib.suppress(ValueError, IndexError):
                    self.messages.remove(message)
                    stale.append(message)
        return stale

    def notice(self) -> None:
        """Wake the workers that read by themselves: the queue got messages."""
        with self._filled:
            self.notices += 1
            self._filled.notify_all()

    def wait_for_notice(self, seen: int, seconds: float) -> None:
        """Wait, unless there was a notification after the number ``seen``."""
        with self._filled:
            if self.notices == seen and not self.stopping:
                self._filled.wait(seconds)

    def adapt(self, seconds: float) -> None:
        """Hold as many messages as the workers start on soon, after one that took ``seconds``."""
        self._pace = seconds if self._pace is None else self._pace * 0.9 + seconds * 0.1
        startable = self._workers + int(self._workers * HORIZON / max(self._pace, 1e-6))
        self.target = min(self.capacity, startable)

    def close(self) -> None:
        """End every worker that waits."""
        self.stopping = True
        self._wake()

    def _wake(self) -> None:
        with self._filled:
            self._filled.notify(sys.maxsize if self.stopping else len(self.messages))


class AsyncBuffer(Buffer):
    """A buffer whose workers run on one event loop, and wait with :meth:`ready`."""

    #: The loop on which workers wait, and its event.
    _waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def ready(self) -> None:
        """Wait for a message for a moment."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop(), asyncio.Event()
        _loop, filled = self._waiting
        filled.clear()
        self._idle += 1
        try:
            if not self.messages and not self.stopping:
                await asyncio.wait_for(filled.wait(), _SLEEP)
        except asyncio.TimeoutError:
            pass
        finally:
            self._idle -= 1

    def _wake(self) -> None:
        if self._waiting is not None:
            loop, filled = self._waiting
            # The loop may have ended just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(filled.set)
