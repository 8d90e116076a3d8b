"""Consumers of queues with limits and rates."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from django_pgqueue.models import ArchivedMessage, Queue
from tests.waiting import until


class Overlaps:
    """A handler that counts how many of it run at once, and notes when each started."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.most = 0
        self.started: list[float] = []
        self._running = 0
        self._lock = threading.Lock()

    def __call__(self, message: object) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            self.started.append(time.monotonic())
        time.sleep(self.seconds)
        with self._lock:
            self._running -= 1


@pytest.mark.parametrize("setting", ["limit", "group_limit"])
def test_consumers_run_as_many_at_once_as_the_limit(committed_orders, consume, setting):
    Queue.objects.update(**{setting: 2})
    Queue.objects.forget_all()
    for n in range(12):
        committed_orders.send(n, group="a" if setting == "group_limit" else None)
    handler = Overlaps(0.02)

    for _ in range(2):
        consume(handler, options={"workers": 4})
    until(lambda: ArchivedMessage.objects.count() == 12)

    assert handler.most == 2


def test_slow_handlers_reach_the_rate_and_none_starts_early(committed_orders, consume):
    Queue.objects.update(group_rate="20/s")
    Queue.objects.forget_all()
    for n in range(12):
        committed_orders.send(n, group="a")
    handler = Overlaps(0.3)

    consume(handler, options={"workers": 10})
    until(lambda: ArchivedMessage.objects.count() == 12)

    reads = sorted(ArchivedMessage.objects.values_list("last_read_at", flat=True))
    assert handler.most > 2
    assert all((b - a).total_seconds() >= 0.05 for a, b in itertools.pairwise(reads))
