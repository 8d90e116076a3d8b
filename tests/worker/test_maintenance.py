"""One consumer of all looks after leaves and retention."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.test import override_settings

from django_pgqueue import ddl, signals
from django_pgqueue.models import BoundQueue, Caretaker, Message, Queue, queue
from django_pgqueue.models.operations import retention
from django_pgqueue.worker import maintenance
from tests.conftest import run_sql
from tests.waiting import until
from tests.worker.consuming import InThread, outcomes

pytestmark = pytest.mark.django_db(transaction=True)

Consume = Callable[..., InThread]
DAY = dt.timedelta(days=1)


@pytest.fixture
def often() -> Iterator[None]:
    with override_settings(PGQUEUE={"MAINTENANCE_SECONDS": 0.05}):
        yield


def nothing(message: Message) -> None:
    pass


def caretakers() -> list[Any]:
    return list(Caretaker.objects.values_list("token", flat=True))


def has_duty(consumer: InThread) -> bool:
    token = consumer.consumer.maintenance._token
    return bool(
        run_sql("SELECT 1 FROM pgqueue_caretaker WHERE token = %s AND until > now()", [token])
    )


def slices(name: str) -> int:
    with connection.cursor() as cursor:
        return len(ddl.leaves(cursor, Queue.objects.resolve(name).pk))


def lose_leaves(name: str) -> None:
    found = Queue.objects.resolve(name)
    with connection.cursor() as cursor:
        for leaf in ddl.leaves(cursor, found.pk):
            if leaf.is_slice:
                cursor.execute(f"DROP TABLE {leaf.message}, {leaf.archive}")


def test_a_consumer_looks_after_every_queue_of_its_database(
    committed_orders: BoundQueue, consume: Consume, often: None
) -> None:
    Message.objects.create_queue("daily", partition_interval=DAY)
    Message.objects.create_queue("short", retention=1)
    lose_leaves("daily")
    old = queue("short").send_batch([1, 2, 3])
    queue("short").archive(old)

    consume(nothing)

    until(lambda: slices("daily") == ddl.AHEAD + 2)
    until(lambda: outcomes("short") == {})


def test_one_of_many_has_the_duty_and_hands_it_over_when_it_stops(
    committed_orders: BoundQueue, consume: Consume, often: None
) -> None:
    consumers = [consume(nothing) for _ in range(3)]
    until(lambda: sum(map(has_duty, consumers)) == 1)
    [first] = [each for each in consumers if has_duty(each)]

    first.stop()

    assert not has_duty(first)
    until(lambda: sum(map(has_duty, consumers)) == 1)


def test_the_duty_of_one_that_fell_silent_passes_on_when_its_time_is_over(
    committed_orders: BoundQueue, consume: Consume, often: None
) -> None:
    gone = uuid4()
    assert Caretaker.objects.hold(gone, 1.0, using="default")

    consumer = consume(nothing)

    assert caretakers() == [gone]
    until(lambda: has_duty(consumer))
    assert not Caretaker.objects.hold(gone, 1.0, using="default")


def test_the_duty_can_be_kept_and_left() -> None:
    mine, other = uuid4(), uuid4()

    assert Caretaker.objects.hold(mine, 60, using="default")
    since = Caretaker.objects.get().since
    assert Caretaker.objects.hold(mine, 60, using="default")
    assert Caretaker.objects.get().since == since
    assert not Caretaker.objects.hold(other, 60, using="default")

    Caretaker.objects.leave(other, using="default")
    assert not Caretaker.objects.hold(other, 60, using="default")
    Caretaker.objects.leave(mine, using="default")
    assert Caretaker.objects.hold(other, 60, using="default")
    assert Caretaker.objects.get().since > since


def test_consumers_that_are_not_to_maintain_do_not(
    committed_orders: BoundQueue, consume: Consume
) -> None:
    with override_settings(PGQUEUE={"MAINTENANCE_SECONDS": None}):
        consumer = consume(nothing)
        orders = committed_orders.send(1)
        until(lambda: orders in outcomes())

        assert not consumer.consumer.maintenance.is_alive()
        consumer.stop()
    assert caretakers() == []


@pytest.mark.parametrize("kind", [DatabaseError, OperationalError, ValueError])
def test_a_failure_is_told_and_the_consumer_goes_on(
    committed_orders: BoundQueue,
    consume: Consume,
    often: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    failures: list[str] = []

    def listen(sender: str, error: Exception, **kwargs: Any) -> None:
        failures.append(str(error))

    def fail(*args: Any) -> None:
        raise kind("permission denied")

    Queue.objects.update(retention=dt.timedelta(seconds=1))  # often, that is
    monkeypatch.setattr(retention._Work, "do", fail)
    signals.maintenance_failed.connect(listen)
    try:
        consumer = consume(nothing)
        until(lambda: len(failures) >= 2)
        pk = committed_orders.send(1)
        until(lambda: pk in outcomes())
        assert consumer.consumer.report()["loops"]
    finally:
        signals.maintenance_failed.disconnect(listen)
    assert set(failures) == {"permission denied"}
    assert f"orders: maintenance failed: {kind.__name__}: permission denied" in caplog.messages


def test_one_that_fails_lets_another_try(
    committed_orders: BoundQueue, consume: Consume, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    does = retention._Work.do
    unlucky: list[int] = []
    lucky: list[int] = []

    def do(work: Any) -> Any:
        me = threading.get_ident()
        if not unlucky:
            unlucky.append(me)
        if me in unlucky:
            raise DatabaseError("permission denied")
        lucky.append(me)
        return does(work)

    monkeypatch.setattr(retention._Work, "do", do)
    consume(nothing)
    consume(nothing)

    until(lambda: lucky)


def test_a_long_round_ends_when_the_consumer_stops(
    committed_orders: BoundQueue, consume: Consume, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    def endless(work: Any) -> None:
        while True:
            rounds.append(1)
            work.progress(0)
            connection.ensure_connection()

    monkeypatch.setattr(retention._Work, "do", endless)
    monkeypatch.setattr(maintenance, "_TERM", 0.3)
    consumer = consume(nothing)
    until(lambda: rounds)

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
def test_a_queue_is_looked_after_as_often_as_its_times_ask_for(
    settings: dict[str, Any], seconds: float
) -> None:
    assert maintenance.pause(Queue(**settings), 60) == seconds


def test_a_consumer_that_drains_has_no_duty(
    committed_orders: BoundQueue, consume: Consume, often: None
) -> None:
    consumer = consume(nothing, options={"drain": True})

    consumer.wait()

    assert caretakers() == []


def test_a_lost_connection_is_made_anew(
    committed_orders: BoundQueue, consume: Consume, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    does = retention._Work.do
    pids: list[int] = []

    def do(work: Any) -> Any:
        [(pid,)] = run_sql("SELECT pg_backend_pid()")
        pids.append(pid)
        if len(pids) == 1:
            run_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return does(work)

    monkeypatch.setattr(retention._Work, "do", do)
    Message.objects.create_queue("daily", partition_interval=DAY)
    lose_leaves("daily")
    consumer = consume(nothing)

    until(lambda: slices("daily") == ddl.AHEAD + 2)

    assert pids[0] != pids[-1]
    assert consumer.consumer.report()["loops"]
