"""Whoever waits for messages is woken by whoever sends: the polls are an hour away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_pgqueue import bare
from django_pgqueue.engine.read import sleep
from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import Message, queue
from tests.conftest import run_sql
from tests.pgmq.conftest import committed_pgmq
from tests.waiting import until

__all__ = ["committed_pgmq"]

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0


@pytest.fixture(autouse=True)
def polls_an_hour_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LISTENING", "_IN_DOUBT"):
        monkeypatch.setattr(sleep, name, (HOUR, 1.0, HOUR))


def send_with_bare(body: Any) -> None:
    with psycopg.connect(url_of("default"), autocommit=True) as connection:
        bare.send(bare.open_queue(connection, "orders"), body)


def send_in_a_batch(body: Any) -> None:
    queue("orders").send_batch([body])


def send_by_plain_sql(body: Any) -> None:
    number = Message.objects.resolve("orders").pk
    run_sql(
        "INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, %s::jsonb)", [number, str(body)]
    )


def send_by_pgmq(body: Any) -> None:
    run_sql("SELECT pgmq.send('orders', %s::jsonb)", [str(body)])


def send_to_a_group(body: Any) -> None:
    queue("orders").send(body, group="g")


def send_soon_due(body: Any) -> None:
    queue("orders").send(body, delay=0.01)


SENDS: tuple[Callable[[Any], None], ...] = (
    send_with_bare,
    send_in_a_batch,
    send_by_plain_sql,
    send_to_a_group,
    send_soon_due,
)
WAIT = {"max_poll_seconds": 30, "poll_interval_ms": 1000 * HOUR}


def read_with_bare() -> list[Any]:
    with psycopg.connect(url_of("default"), autocommit=True) as connection:
        opened = bare.open_queue(connection, "orders")
        found = bare.read_with_poll(opened, **WAIT)
        bare.archive(opened, found)
        return [int(each.body) for each in found]


def read_with_poll() -> list[Any]:
    found = queue("orders").read_with_poll(**WAIT)
    queue("orders").archive(found)
    return [each.body for each in found]


def aread_with_poll() -> list[Any]:
    found = async_to_sync(queue("orders").aread_with_poll)(**WAIT)
    queue("orders").archive(found)
    return [each.body for each in found]


def read_groups() -> list[Any]:
    found = queue("orders").pgmq.read_grouped_with_poll(**WAIT)
    queue("orders").archive(found)
    return [each.body for each in found]


@contextmanager
def in_a_thread(read: Callable[[], list[Any]]) -> Iterator[Future[list[Any]]]:
    found: Future[list[Any]] = Future()

    def run() -> None:
        try:
            found.set_result(read())
        except BaseException as error:
            found.set_exception(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    thread.join(20)


def until_asleep() -> None:
    mark = Message.objects.resolve("orders").tables["wake"]
    until(lambda: run_sql(f"SELECT pg_sequence_last_value('{mark}')") == [(7,)])


@pytest.mark.parametrize(
    "read", [read_with_poll, aread_with_poll, read_groups, read_with_bare], ids=lambda r: r.__name__
)
def test_a_read_that_waits_is_woken_by_each_way_to_send(committed_orders, read):
    untold()
    for number, send in enumerate(SENDS):
        with in_a_thread(read) as found:
            until_asleep()

            send(number)

            assert found.result(timeout=20) == [number]


def test_a_read_that_waits_is_woken_by_pgmqs_send(committed_orders, committed_pgmq):
    untold()
    with in_a_thread(read_with_poll) as found:
        until_asleep()

        send_by_pgmq(1)

        assert found.result(timeout=20) == [1]


@pytest.mark.parametrize("kind", ["workers", "async", "locked"])
def test_a_consumer_is_woken_by_each_way_to_send(committed_orders, consume, kind):
    untold()
    handled: list[Any] = []

    def work(message: Message) -> None:
        handled.append(message.body)

    async def work_async(message: Message) -> None:
        handled.append(message.body)

    options = {"locked": True} if kind == "locked" else {}
    consume(work_async if kind == "async" else work, max_fetch_interval=HOUR, **options)

    for number, send in enumerate(SENDS):
        until_asleep()

        send(number)

        until(lambda number=number: handled == list(range(number + 1)))


def untold() -> None:
    """No send notifies until a reader falls asleep."""
    run_sql(f"SELECT setval('{Message.objects.resolve('orders').tables['wake']}', 8)")
