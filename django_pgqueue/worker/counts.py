"""A process's counters for one subscription: messages by outcome, wait times and run times."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from typing import Any

from django_pgqueue.conf import settings
from django_pgqueue.history.histograms import bucket
from django_pgqueue.worker.running import Running

_OUTCOMES = ("completed", "retried", "failed", "exhausted", "lost")


class Counts:
    """Numbers of messages since the process began. Any thread may add to them."""

    def __init__(self) -> None:
        #: All leases taken, including those that were released.
        self.leased = 0
        self.fetched = self.started = 0
        self.completed = self.retried = self.failed = self.cancelled = self.lost = 0
        #: Messages that a read failed, since they had been delivered as often as allowed.
        self.exhausted = 0
        self._counting = threading.Lock()
        #: Whether the process writes its queues' history, and so counts wait and run times.
        self.keeps_history = settings.HISTORY_SECONDS is not None
        #: Runs that have ended and are not counted yet, with their seconds.
        self.ended: deque[tuple[Running, float]] = deque()
        #: Messages by the bucket of their wait and of their run time; the seconds of handlers.
        self._waits: defaultdict[int, int] = defaultdict(int)
        self._runs: defaultdict[int, int] = defaultdict(int)
        self._busy = 0.0

    def add(self, **more: int) -> None:
        """Add to the numbers, and count how long the messages of ended runs waited and took.

        Called once for many messages: a lock that the workers take for each costs 15 % of the rate
        of a handler that does nothing.
        """
        with self._counting, contextlib.suppress(IndexError):
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)
            while True:
                running, seconds = self.ended.popleft()
                self._busy += seconds
                self._runs[bucket(seconds)] += len(running.messages)
                for message in running.messages:
                    if (waited := message.waited) is not None:
                        self._waits[bucket(waited)] += 1

    @property
    def settled(self) -> int:
        """Messages that came to an outcome here, were cancelled, or were lost to other readers."""
        return self.completed + self.retried + self.failed + self.cancelled + self.lost

    def tally(self) -> dict[Any, float]:
        """Everything counted so far, for the history: outcomes, waits and run times by bucket, and
        the seconds in handlers."""
        self.add()
        with self._counting:
            waits = {("waits", number): count for number, count in self._waits.items()}
            runs = {("runs", number): count for number, count in self._runs.items()}
            outcomes = {name: getattr(self, name) for name in _OUTCOMES}
            return {"busy": self._busy, **outcomes, **waits, **runs}
