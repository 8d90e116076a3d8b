"""Waits, signals and timeouts at the same moments, while handlers fail and connections break."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_pgqueue import signal
from django_pgqueue.errors import LeaseLost, TimedOut
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message, PendingWait, SentSignal, queue
from tests.conftest import run_sql
from tests.promises.consumers import AGAIN
from tests.promises.draining import is_empty
from tests.promises.full_speed import FullSpeed
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

REACHES = (
    "A signal that commits reaches every message that waits for its key at that moment, and every "
    "one that waits for it later while the signal is kept."
)
ONE_DECIDES = (
    "Of a signal and a timeout, exactly one decides a wait: all later deliveries get the same "
    "outcome."
)
NOT_COUNTED = "A wait counts neither a delivery nor an attempt."
HOUR = 3600.0


@pytest.fixture
def orders(committed: None) -> None:
    Message.objects.create_queue("orders", visibility_timeout=1, max_deliveries=10_000)


class Waiters:
    """Handlers that wait for the signal of their message, and note each outcome."""

    def __init__(self, full_speed: FullSpeed, timeout: float, *, fails: float) -> None:
        self._journal, self._timeout, self._fails = full_speed.journal, timeout, fails
        self._draw = random.Random(3)

    def handle(self, message: Message) -> None:
        key = message.body["key"]
        facts = {"id": message.id, "read_ct": message.read_ct, "attempts": message.attempts}
        self._journal.note("comes", **facts)
        try:
            outcome = message.wait_for(key, timeout=self._timeout)
        except TimedOut:
            outcome = "timed out"
        except LeaseLost:
            return
        self._journal.note("goes on", outcome=outcome, **facts)
        if self._draw.random() < self._fails:
            raise ValueError("as told")

    def handler(self) -> Handler:
        return Handler("orders", self.handle, retry=AGAIN, max_deliveries=10_000)


def work_off(
    full_speed: FullSpeed,
    consume: Any,
    waiters: Waiters,
    fault: bool,
    *,
    pause: float = 0.01,
    until: Callable[[], object] = lambda: True,
) -> None:
    """Send messages and signals from several sessions, and consume, until all is done."""
    keys: Iterator[int] = iter(range(10**9))

    def send_and_signal() -> None:
        """A message and its signal: before it, at once, or while it waits; alone or with others."""
        key = f"k{next(keys)}"
        place = full_speed.draw.randrange(4)
        try:
            if place == 0:
                told(key)
            queue("orders").send_batch([{"key": key}] * full_speed.draw.choice([1, 1, 3]))
            time.sleep([0, 0, pause / 2, pause][place])
            if place != 0:
                told(key)
        except DatabaseError:
            pass  # cut off

    def told(key: str) -> None:
        with transaction.atomic():
            signal(key, key)
            time.sleep(full_speed.draw.choice([0, 0, 0.005]))
        full_speed.journal.note("told", key=key)

    for _ in range(4):
        full_speed.beside(send_and_signal)
    started = [
        consume(handlers=[waiters.handler()], options={"workers": 4, "batch": 5}) for _ in range(2)
    ]
    for each in started:
        each.until_registered()
    if fault:
        full_speed.cut_connections(of_consumers=True)
    full_speed.run(least=200, until=until)

    def is_done() -> bool:
        """Whether all messages have ended. Sends signals that were cut off before their commit."""
        sent = SentSignal.objects.filter(sent_at__isnull=False)
        for key in PendingWait.objects.exclude(key__in=sent.values("key")).values_list(
            "key", flat=True
        ):
            told(key)
        return is_empty()

    full_speed.wait(is_done)
    for each in started:
        each.stop()


def outcomes(full_speed: FullSpeed) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for note in full_speed.notes("goes on"):
        found[note["id"]].add(note["outcome"])
    return found


@promise(REACHES)
@pytest.mark.parametrize("fault", [False, True], ids=["no fault", "cut"])
def test_no_signal_is_lost(full_speed, consume, orders, fault):
    work_off(full_speed, consume, Waiters(full_speed, HOUR, fails=0.2), fault)

    found = outcomes(full_speed)
    archived = run_sql("SELECT id FROM pgqueue_archive WHERE state = 'COMPLETED'")
    assert {pk for (pk,) in archived} <= found.keys()
    assert all(len(each) == 1 and "timed out" not in each for each in found.values())
    assert len(found) > 50
    assert not fault or full_speed.cut


@promise(ONE_DECIDES)
@pytest.mark.parametrize("fault", [False, True], ids=["no fault", "cut"])
def test_a_signal_or_a_timeout_decides_for_all_deliveries(full_speed, consume, orders, fault):
    def both_happened() -> bool:
        ways = {n["outcome"] == "timed out" for n in full_speed.notes("goes on")}
        return ways == {True, False}

    waiters = Waiters(full_speed, 0.05, fails=0.5)
    work_off(full_speed, consume, waiters, fault, pause=0.2, until=both_happened)

    found = outcomes(full_speed)
    assert [each for each in found.values() if len(each) != 1] == []
    stored = run_sql(
        "SELECT message_id, coalesce(value ->> 'signal', 'timed out') FROM pgqueue_step"
    )
    assert {pk: {outcome} for pk, outcome in stored} == {pk: found[pk] for pk, _ in stored}


@promise(NOT_COUNTED)
def test_a_wait_counts_nothing(full_speed, consume, orders):
    work_off(full_speed, consume, Waiters(full_speed, HOUR, fails=0), fault=False, pause=0.1)

    for name in ("comes", "goes on"):
        assert {(n["read_ct"], n["attempts"]) for n in full_speed.notes(name)} == {(1, 0)}
    archived = run_sql("SELECT DISTINCT read_ct, attempts FROM pgqueue_archive")
    assert archived == [(1, 1)]
    comes, goes_on = full_speed.notes("comes"), full_speed.notes("goes on")
    assert len(comes) > len(goes_on)  # some have waited
