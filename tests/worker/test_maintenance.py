"""Only one consumer process at a time maintains the queues."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.test import override_settings

from django_pgqueue import signals
from django_pgqueue.history import keep as keeping
from django_pgqueue.maintenance import lease
from django_pgqueue.maintenance import round as rounds
from django_pgqueue.maintenance.partitions import AHEAD, find_partitions
from django_pgqueue.models import MaintenanceLease, Message, Queue, queue
from django_pgqueue.worker import maintenance
from tests.conftest import run_sql
from tests.hearing import heard
from tests.waiting import until
from tests.worker.consuming import InThread, outcomes

pytestmark = pytest.mark.django_db(transaction=True)

DAY = dt.timedelta(days=1)


@pytest.fixture
def often() -> Iterator[None]:
    with override_settings(PGQUEUE={"MAINTENANCE_SECONDS": 0.05}):
        yield


def nothing(message: Message) -> None:
    pass


def holders() -> list[Any]:
    return list(MaintenanceLease.objects.values_list("token", flat=True))


def holds_lease(consumer: InThread) -> bool:
    token = consumer.consumer.maintenance._token
    return bool(
        run_sql("SELECT 1 FROM pgqueue_maintenance WHERE token = %s AND until > now()", [token])
    )


def partitions(name: str) -> int:
    with connection.cursor() as cursor:
        return len(find_partitions(cursor, Queue.objects.resolve(name).pk))


def lose_partitions(name: str) -> None:
    found = Queue.objects.resolve(name)
    with connection.cursor() as cursor:
        for each in find_partitions(cursor, found.pk):
            if each.has_range:
                cursor.execute(f"DROP TABLE {each.message}, {each.archive}")


def test_a_consumer_maintains_every_queue_of_its_database(committed_orders, consume, often):
    Message.objects.create_queue("daily", partition_interval=DAY)
    Message.objects.create_queue("short", retention=1)
    lose_partitions("daily")
    old = queue("short").send_batch([1, 2, 3])
    queue("short").archive(old)

    consume(nothing)

    until(lambda: partitions("daily") == AHEAD + 2)
    until(lambda: outcomes("short") == {})


def test_consumers_and_the_command_run_the_same_steps_in_the_same_order(
    committed_orders, consume, often, monkeypatch
):
    ran: list[str] = []
    steps = [lambda work, name=name: ran.append(name) for name in ("first", "second")]
    monkeypatch.setattr(rounds, "QUEUE_STEPS", steps)
    monkeypatch.setattr(keeping, "_sample", ran.append)
    in_order = ["first", "second", "default"]

    Message.objects.maintain_all()
    assert ran == in_order

    consume(nothing)
    until(lambda: ran[3:6] == in_order)


def test_one_of_many_consumers_holds_the_lease_and_releases_it_when_it_stops(
    committed_orders, consume, often
):
    consumers = [consume(nothing) for _ in range(3)]
    until(lambda: sum(map(holds_lease, consumers)) == 1)
    [first] = [each for each in consumers if holds_lease(each)]

    first.stop()

    assert not holds_lease(first)
    until(lambda: sum(map(holds_lease, consumers)) == 1)


def test_the_lease_of_a_silent_consumer_passes_on_when_it_expires(committed_orders, consume, often):
    gone = uuid4()
    assert lease.hold(gone, 1.0, using="default")

    consumer = consume(nothing)

    assert holders() == [gone]
    until(lambda: holds_lease(consumer))
    assert not lease.hold(gone, 1.0, using="default")


def test_without_maintenance_seconds_a_consumer_does_not_maintain(committed_orders, consume):
    with override_settings(PGQUEUE={"MAINTENANCE_SECONDS": None}):
        consumer = consume(nothing)
        orders = committed_orders.send(1)
        until(lambda: orders in outcomes())

        assert not consumer.consumer.maintenance.is_alive()
        consumer.stop()
    assert holders() == []


@pytest.mark.parametrize("kind", [DatabaseError, OperationalError, ValueError])
def test_a_failure_is_announced_and_the_consumer_goes_on(
    committed_orders, consume, often, monkeypatch, caplog, kind
):
    def fail(*args: Any) -> None:
        raise kind("permission denied")

    Queue.objects.update(retention=dt.timedelta(seconds=1))  # makes maintenance frequent
    monkeypatch.setattr(rounds, "QUEUE_STEPS", [fail])
    with heard(signals.maintenance_failed) as failures:
        consumer = consume(nothing)
        until(lambda: len(failures) >= 2)
        pk = committed_orders.send(1)
        until(lambda: pk in outcomes())
        assert consumer.consumer.report()["loops"]
    assert {str(each["error"]) for each in failures} == {"permission denied"}
    assert f"orders: maintenance failed: {kind.__name__}: permission denied" in caplog.messages


def test_a_consumer_whose_maintenance_fails_lets_another_try(
    committed_orders, consume, often, monkeypatch
):
    unlucky: list[int] = []
    lucky: list[int] = []

    def do(work: Any) -> None:
        me = threading.get_ident()
        if not unlucky:
            unlucky.append(me)
        if me in unlucky:
            raise DatabaseError("permission denied")
        lucky.append(me)

    monkeypatch.setattr(rounds, "QUEUE_STEPS", [do])
    consume(nothing)
    consume(nothing)

    until(lambda: lucky)


def test_a_long_round_ends_when_the_consumer_stops(committed_orders, consume, often, monkeypatch):
    begun: list[int] = []

    def endless(work: Any) -> None:
        while True:
            begun.append(1)
            work.progress(0)
            connection.ensure_connection()

    monkeypatch.setattr(rounds, "QUEUE_STEPS", [endless])
    monkeypatch.setattr(maintenance, "_TERM", 0.3)
    consumer = consume(nothing)
    until(lambda: begun)

    consumer.stop()

    until(lambda: not consumer.consumer.maintenance.is_alive())


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 3600),
        ({"retention": dt.timedelta(days=30)}, 3600),
        ({"retention": dt.timedelta(hours=2)}, 360),
        ({"retention": dt.timedelta(seconds=1)}, 60),
        ({"partition_interval": dt.timedelta(hours=1)}, 900),
    ],
)
def test_a_queue_is_maintained_as_often_as_its_times_ask_for(settings, seconds):
    assert maintenance.pause(Queue(**settings), 60) == seconds


def test_a_consumer_that_drains_takes_no_lease(committed_orders, consume, often):
    consumer = consume(nothing, options={"drain": True})

    consumer.wait()

    assert holders() == []


def test_maintenance_reconnects_after_a_lost_connection(
    committed_orders, consume, often, monkeypatch
):
    pids: list[int] = []

    def do(work: Any) -> None:
        [(pid,)] = run_sql("SELECT pg_backend_pid()")
        pids.append(pid)
        if len(pids) == 1:
            run_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(rounds, "QUEUE_STEPS", [do, *rounds.QUEUE_STEPS])
    Message.objects.create_queue("daily", partition_interval=DAY)
    lose_partitions("daily")
    consumer = consume(nothing)

    until(lambda: partitions("daily") == AHEAD + 2)

    assert pids[0] != pids[-1]
    assert consumer.consumer.report()["loops"]
