"""Consumers of queues with limits and rates."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from django_pgqueue.errors import InvalidArgument
from django_pgqueue.handlers import Handler
from django_pgqueue.models import ArchivedMessage, Queue
from django_pgqueue.worker import Consumer, Options
from tests.waiting import until
from tests.worker.consuming import live


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


@pytest.mark.parametrize("setting", ["limit", "group_limit", "a group's own"])
def test_ack_first_is_refused_on_a_queue_with_a_limit(committed_orders, setting):
    if setting == "a group's own":
        committed_orders.group("a").limit(2)
    else:
        Queue.objects.update(**{setting: 1})
    Queue.objects.forget_all()
    handler = Handler("orders", Overlaps(0), ack_policy="ACK_FIRST")

    with pytest.raises(InvalidArgument, match=r"has a limit.*Overlaps has ack_policy ACK_FIRST"):
        Consumer([handler], Options())


@pytest.mark.parametrize("setting", [{"limit": 1}, {"rate": "1/s"}, {"group_rate": "1/s"}])
def test_locked_is_refused_on_a_queue_with_a_limit_or_a_rate(committed_orders, setting):
    Queue.objects.update(**setting)
    Queue.objects.forget_all()
    handler = Handler("orders", Overlaps(0), locked=True)

    with pytest.raises(InvalidArgument, match=r"Overlaps has locked=True.*TRANSACTIONAL"):
        Consumer([handler], Options())


def test_ack_first_stops_when_its_queue_gets_a_limit(committed_orders, consume, events, settings):
    settings.PGQUEUE = {"CACHE_SECONDS": 0.05}
    go = threading.Event()
    handler = Overlaps(0)

    def wait(message: object) -> None:
        go.wait(20)
        handler(message)

    committed_orders.send_batch(list(range(20)))
    run = consume(wait, ack_policy="ACK_FIRST", max_workers=1, max_fetch_interval=0.05)
    until(lambda: len(run.subscription.buffer) > 0)
    Queue.objects.update(limit=1)
    run.subscription.buffer.plan.fetch_now()

    until(lambda: any("has a limit" in str(told.get("error")) for _, told in events))
    until(lambda: len(run.subscription.buffer) == 0)
    go.set()

    until(lambda: len(handler.started) == 1)
    assert len(live()) == 19


def test_ack_first_keeps_a_rate(committed_orders, consume):
    Queue.objects.update(rate="20/s")
    Queue.objects.forget_all()
    committed_orders.send_batch(list(range(6)))
    handler = Overlaps(0)

    consume(handler, ack_policy="ACK_FIRST")
    until(lambda: ArchivedMessage.objects.count() == 6)

    reads = sorted(ArchivedMessage.objects.values_list("last_read_at", flat=True))
    assert all((b - a).total_seconds() >= 0.05 for a, b in itertools.pairwise(reads))


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
