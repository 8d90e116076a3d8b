"""Connections that fall silent in the middle of what a consumer does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_pgqueue.models import BoundQueue, Message
from django_pgqueue.worker.watchdog import Watchdog
from django_pgqueue.worker.workers import LockedWorker, Worker
from tests.worker.consuming import PATIENT, executing, subscribed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    """One that loses patience at once."""
    watchdog = Watchdog(0.2)
    watchdog.start()
    yield watchdog
    watchdog.stop()
    connection.close()


def wait_for_ever() -> None:
    with connection.cursor() as cursor:
        # So that the server does not wait for ever too.
        cursor.execute("SET client_connection_check_interval = '100ms'")
        cursor.execute("SELECT pg_sleep(600)")


def test_a_block_that_goes_on_after_a_cut_is_cut_again(watchdog: Watchdog) -> None:
    with watchdog.over():
        for _ in range(2):
            with pytest.raises(OperationalError):
                wait_for_ever()
            connection.close()


def test_a_block_that_is_suspended_has_all_the_time_it_likes(watchdog: Watchdog) -> None:
    with watchdog.over() as watch:
        with watch.suspended(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(1)")
        with pytest.raises(OperationalError):
            wait_for_ever()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How each transaction of this thread ended, and how many watches there were over it."""
    found: list[tuple[str, int]] = []

    def note(name: str) -> None:
        end = getattr(connection, name)

        def end_and_note() -> Any:
            found.append((name, len(PATIENT._watches)))
            return end()

        monkeypatch.setattr(connection, name, end_and_note)

    note("_commit")
    note("_rollback")
    return found


def test_the_end_of_a_locked_workers_transaction_is_watched(
    committed_orders: BoundQueue, ends: list[tuple[str, int]]
) -> None:
    subscription = subscribed(locked=True)
    execution = executing(subscription)
    worker = LockedWorker(subscription, execution, PATIENT, lambda subscription: True)
    committed_orders.send(1)
    del ends[:]

    found = worker._handle_one(), worker._handle_one()

    assert (found, ends) == ((True, False), [("_commit", 1), ("_commit", 1)])


def test_the_end_of_a_transactional_handler_is_watched(
    committed_orders: BoundQueue, ends: list[tuple[str, int]]
) -> None:
    subscription = subscribed(ack_policy="TRANSACTIONAL")
    committed_orders.send_batch([1, 2])
    messages = Message.objects.lease(subscription.queue, vt=60, qty=2)
    for message in messages:
        message.lease_until = time.monotonic() + 60
    execution = executing(subscription)
    del ends[:]

    execution.run(messages[:1], threading.get_ident())
    execution._call = lambda message, context: 1 / 0
    execution.run(messages[1:], threading.get_ident())

    assert ends == [("_commit", 1), ("_rollback", 1)]


def test_a_look_at_a_connection_after_an_error_is_watched(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = subscribed()
    worker = Worker(subscription, executing(subscription), PATIENT)
    watches: list[int] = []
    monkeypatch.setattr(connection, "is_usable", lambda: watches.append(len(PATIENT._watches)))
    monkeypatch.setattr(connection, "errors_occurred", True)
    subscription.close()

    assert worker._take(1) == []

    assert watches == [1]
