"""The buffer: leased messages that wait for a worker, and the plan of the next fetch."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.models import Message
from django_pgqueue.worker.groups import Groups

#: The buffer holds only the messages that handlers will start within this many seconds.
HORIZON = 2.0
#: The shortest time for which a process leaves a message to others, in milliseconds, and how much
#: longer it may be.
_LEAST_VAIN, _MOST_VAIN = 4, 28
#: The longest sleep of a worker that waits for a message, in seconds.
_SLEEP = 1.0


class FetchPlan:
    """The plan of a subscription's next fetch. ``awake`` wakes the fetch loop."""

    def __init__(self, awake: threading.Event) -> None:
        self.awake = awake
        #: The time of the next fetch, by time.monotonic().
        self.at = 0.0
        self.sleep = Sleep()
        #: Whether notifications arrive. If not, the queue is read more often.
        self.listening = False
        #: Whether a notification came after the last fetch began.
        self.notified = False
        #: Whether the next fetch is a poll: it looks for messages before it reads.
        self.asleep = False
        #: Whether a notification came after the process last fell asleep.
        self.woken = False
        #: How many notifications in a row came in vain: another process took the message.
        self.vain = 0
        #: The last fetch returned a suspect (:mod:`.quarantine`). More suspects may follow, so the
        #: next fetch asks for one message.
        self.suspicious = False
        #: Whether the queue may have more messages: the last fetch got as many as it wanted, or
        #: fetched nothing because the buffer was full.
        self.more = False
        #: Whether a fetch is running. The messages that it leases are not in the buffer yet.
        self.fetching = False

    def fetch_now(self, *, is_notice: bool = False) -> None:
        """Fetch at once: there may be new messages.

        A notice is a notification, which every process gets. One that came in vain more than once
        leaves the messages to others at first: for 4 milliseconds, and up to as many more, at
        random, as came in vain, at most 28.
        """
        # Set ``notified`` first: the fetch loop sets ``at`` too, and reads ``notified`` after that.
        self.notified = True
        self.sleep.wait = 0.0
        if is_notice and self.vain > 1:
            vain = min(self.vain, _MOST_VAIN)
            wait = _LEAST_VAIN + random.uniform(0, vain)
            self.at = min(self.at, time.monotonic() + wait / 1000)
        else:
            self.asleep = False
            self.at = 0.0
        self.awake.set()


class Buffer:
    """The leased messages of a subscription that no handler has started on.

    All threads share it. They change the deque without a lock, by operations that are atomic in
    Python: taking a lock for each message would take longer than many handlers.
    """

    def __init__(self, capacity: int, target: int, workers: int, plan: FetchPlan) -> None:
        self.capacity = capacity
        #: How many messages the buffer may hold now. :meth:`adapt` sets it.
        self.target = target
        self.plan = plan
        #: The FIFO groups with a message that is buffered or running.
        self.groups = Groups()
        #: Whether the workers should end.
        self.stopping = False
        #: The ``notified`` of this queue's LockedWorkers, which read the queue themselves.
        self.readers: list[Callable[[int | None], None]] = []
        self.messages: deque[Message] = deque()
        self._workers = workers
        #: The handler's mean seconds per message, exponentially weighted.
        self._pace: float | None = None
        self._filled = threading.Condition()
        #: The number of workers that wait for a message.
        self._idle = 0

    def __len__(self) -> int:
        """The number of messages that a worker can start on."""
        return len(self.messages)

    def free(self, most: int) -> int:
        """How many more messages may be fetched, up to ``most``."""
        return max(0, min(most, self.target - len(self.messages)))

    def free_for_followers(self, most: int) -> int:
        """How many more followers of FIFO groups may be leased, up to ``most``."""
        # Followers have a limit of their own, so that a long group does not keep other groups out.
        return max(0, min(most, self.target - len(self.groups)))

    def put(self, messages: Sequence[Message], followers: Sequence[Message] = ()) -> int:
        """Pass messages to the workers, and each follower once the message before it is settled.

        Returns how many older followers of the same groups were lost.
        """
        heads = [message for message in messages if message.group_key is not None]
        lost = len(self.groups.add(heads, followers)) if heads else 0
        self.messages.extend(messages)
        if self._idle:
            self._wake()
        return lost

    def promote(self, settled: Sequence[Message]) -> None:
        """Pass the next message of each settled message's FIFO group to the workers."""
        following = [self.groups.promote(message) for message in settled]
        if found := [message for message in following if message is not None]:
            self.messages.extend(found)
            if self._idle:
                self._wake()
        if len(found) < len(following) and 2 * len(self.messages) < self.target:
            # A group without a leased follower may have a new head in the queue.
            self.plan.fetch_now()

    def take(self, most: int = 1, *, wait: bool = False) -> list[Message]:
        """Take up to ``most`` messages. ``wait``: wait for the first. Returns [] when stopping."""
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

    def take_all(self) -> list[Message]:
        """Remove and return all messages, followers included."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.messages.popleft())
        return taken + self.groups.take()

    def take_stale(self, is_stale: Callable[[Message], bool]) -> list[Message]:
        """Remove and return stale messages, and all messages of a group behind a stale follower."""
        stale = self.groups.take(is_stale)
        for message in list(self.messages):
            if is_stale(message):
                # remove() fails if a worker takes any message meanwhile. The next take_stale() then
                # removes this one, if it is still here.
                with contextlib.suppress(ValueError, IndexError):
                    self.messages.remove(message)
                    stale.append(message)
        return stale

    def notice(self, session: int | None) -> None:
        """Wake the LockedWorkers: a session has notified. None: one may have."""
        for notified in self.readers:
            notified(session)

    def adapt(self, seconds: float) -> None:
        """Set the target from the handler's pace. The last message took ``seconds``."""
        self._pace = seconds if self._pace is None else self._pace * 0.9 + seconds * 0.1
        startable = self._workers + int(self._workers * HORIZON / max(self._pace, 1e-6))
        self.target = min(self.capacity, startable)

    def close(self) -> None:
        """End the workers as soon as they ask for a message."""
        self.stopping = True
        self._wake()
        self.notice(None)

    def _wake(self) -> None:
        with self._filled:
            self._filled.notify(sys.maxsize if self.stopping else len(self.messages))


class AsyncBuffer(Buffer):
    """A buffer whose workers run on one event loop, and wait with :meth:`ready`."""

    #: The workers' event loop, and the event that they wait for.
    _waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def ready(self) -> None:
        """Wait up to a second for a message."""
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
