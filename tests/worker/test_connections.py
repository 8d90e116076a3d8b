"""A consumer's connections: their options, and how silent ones are cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_pgqueue.worker import connections as ours
from django_pgqueue.worker.connections import configure, limited, pool_size
from django_pgqueue.worker.workers import LockedWorker, Worker
from tests.conftest import run_sql
from tests.leasing import lease
from tests.worker.consuming import executing, subscribed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits that expire at once."""
    monkeypatch.setattr(ours, "_seconds", 0.2)
    yield
    connection.close()


def wait_for_ever() -> None:
    # The server notices the cut connection too.
    run_sql("SET client_connection_check_interval = '100ms'")
    run_sql("SELECT pg_sleep(600)")


@pytest.mark.usefixtures("impatient")
def test_a_block_that_goes_on_after_its_limit_is_cut_again():
    with limited():
        for _ in range(2):
            with pytest.raises(OperationalError):
                wait_for_ever()
            connection.close()


@pytest.mark.usefixtures("impatient")
def test_a_block_that_is_suspended_has_no_limit():
    with limited() as limit:
        with limit.suspended(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(1)")
        with pytest.raises(OperationalError):
            wait_for_ever()


def test_connections_get_keepalives_and_a_name_unless_the_project_has_its_own(monkeypatch):
    monkeypatch.setattr(ours, "_seconds", ours._seconds)
    options: dict[str, Any] = {"tcp_user_timeout": 5}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    monkeypatch.setitem(connections["other"].settings_dict, "OPTIONS", {})

    configure(30, "runconsumer orders")

    assert options == {
        "connect_timeout": 30,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 5,
        "fallback_application_name": "runconsumer orders",
    }
    connection.close()
    assert run_sql("SHOW application_name") == [("runconsumer orders",)]
    connection.close()


@pytest.mark.parametrize(
    ("pool", "size"),
    [(None, None), (True, 4), ({"min_size": 2}, 2), ({"min_size": 2, "max_size": 9}, 9)],
)
def test_the_size_of_a_pool_is_known(monkeypatch, pool, size):
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": pool})

    assert pool_size("default") == size


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The ends of this thread's transactions, each with the number of limits set."""
    found: list[tuple[str, int]] = []

    def note(name: str) -> None:
        end = getattr(connection, name)

        def end_and_note() -> Any:
            found.append((name, len(ours._limits)))
            return end()

        monkeypatch.setattr(connection, name, end_and_note)

    note("_commit")
    note("_rollback")
    return found


def test_the_end_of_a_locked_workers_transaction_is_limited(committed_orders, ends):
    subscription = subscribed(locked=True)
    execution = executing(subscription)
    worker = LockedWorker(subscription, execution, lambda subscription: True)
    committed_orders.send(1)
    del ends[:]

    found = worker._handle_one(), worker._handle_one()

    assert (found, ends) == ((0.0, None), [("_commit", 1), ("_commit", 1)])


def test_the_end_of_a_transactional_handler_is_limited(committed_orders, ends):
    subscription = subscribed(ack_policy="TRANSACTIONAL")
    committed_orders.send_batch([1, 2])
    messages = lease(subscription.queue, vt=60, qty=2)
    for message in messages:
        message.lease_until = time.monotonic() + 60
    execution = executing(subscription)
    del ends[:]

    execution.run(messages[:1], threading.get_ident())
    execution._call = lambda message, context: 1 / 0
    execution.run(messages[1:], threading.get_ident())

    assert ends == [("_commit", 1), ("_rollback", 1)]


def test_a_look_at_a_connection_after_an_error_is_limited(committed_orders, monkeypatch):
    subscription = subscribed()
    worker = Worker(subscription, executing(subscription))
    limits: list[int] = []
    monkeypatch.setattr(connection, "is_usable", lambda: limits.append(len(ours._limits)))
    monkeypatch.setattr(connection, "errors_occurred", True)
    subscription.buffer.close()

    worker.run()

    assert limits == [1]
