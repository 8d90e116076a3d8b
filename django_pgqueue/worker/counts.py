"""A process's counters for one subscription: messages by outcome, wait times and run times."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from typing import Any

from django_pgqueue.conf import settings
from django_pgqueue.history.histograms import bucket
from django_pgqueue.models import Message
from django_pgqueue.types import counted_in

#: Messages by their terminal state, as the history counts them.
_ENDED = tuple(state.counter for state in counted_in("history"))
_OUTCOMES = (*_ENDED, "exhausted", "retried", "lost")


class Counts:
    """Numbers of messages since the process started. Any thread may add to them."""

    def __init__(self) -> None:
        #: All leases taken, including those that were released.
        self.leased = 0
        self.fetched = self.started = 0
        vars(self).update(dict.fromkeys(_ENDED, 0))
        self.completed = self.retried = self.failed = self.cancelled = self.lost = 0
        #: Messages that a read ended: the exhausted ones failed because their deliveries ran out,
        #: the expired ones were archived as EXPIRED.
        self.exhausted = self.expired = 0
        self._lock = threading.Lock()
        #: Whether the process writes its queues' history, and so counts wait and run times.
        self.keeps_history = settings.HISTORY_SECONDS is not None
        #: The messages of ended runs that are not counted yet, with the run time in seconds.
        self.ended: deque[tuple[list[Message], float]] = deque()
        #: Numbers of messages by time bucket: keys are ("waits", bucket) and ("runs", bucket).
        self._times: Counter[tuple[str, int]] = Counter()
        #: The seconds that handlers ran.
        self._busy = 0.0

    def add(self, **more: int) -> None:
        """Add to the numbers, and count the wait and run times of ended runs.

        Called once for many messages: taking the lock for each message made an empty handler 15 %
        slower.
        """
        with self._lock, contextlib.suppress(IndexError):
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)
            while True:
                messages, seconds = self.ended.popleft()
                self._busy += seconds
                self._times["runs", bucket(seconds)] += len(messages)
                for message in messages:
                    if (waited := message.waited) is not None:
                        self._times["waits", bucket(waited)] += 1

    @property
    def settled(self) -> int:
        """The number of messages this process is done with, including cancelled and lost ones."""
        return self.completed + self.retried + self.failed + self.cancelled + self.lost

    def tally(self) -> dict[Any, float]:
        """All counts so far, for the history: outcomes, histograms of times, busy seconds."""
        self.add()
        with self._lock:
            outcomes = {name: getattr(self, name) for name in _OUTCOMES}
            return {"busy": self._busy, **outcomes, **self._times}
