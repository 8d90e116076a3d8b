"""Queues in several databases: one database's failure does not delay the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from django_pgqueue.acks import Ack
from django_pgqueue.engine.read import reading
from django_pgqueue.handlers import Handler
from django_pgqueue.maintenance import lease as maintenance_lease
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message, Process, queue
from django_pgqueue.worker import Consumer, Options
from django_pgqueue.worker.fetcher import Fetcher
from django_pgqueue.worker.leases import LeaseKeeper
from django_pgqueue.worker.maintenance import Maintenance
from django_pgqueue.worker.running import Running
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription
from tests.leasing import lease
from tests.waiting import until
from tests.worker.consuming import executing, subscribed

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture
def both() -> list[Subscription]:
    """A queue of ten messages in each database; the database that fails comes first."""
    for alias in ("other", "default"):
        Message.objects.using(alias).create_queue("orders")
        Message.objects.using(alias).send_batch("orders", range(10))
    return [subscribed(using="other"), subscribed(using="default")]


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    """Make an operation fail on the database "other"."""

    def fail(manager: Any, name: str) -> None:
        operation = getattr(manager, name)

        def run(on: Any, *args: Any, **options: Any) -> Any:
            bound = isinstance(on, BoundQueue)
            if (on.using if bound else getattr(on, "alias", None) or on._state.db) == "other":
                raise OperationalError("the server is gone")
            return operation(on, *args, **options)

        monkeypatch.setattr(manager, name, run)

    return fail


def leased(subscription: Subscription, qty: int = 10) -> list[Message]:
    messages = lease(subscription.queue, vt=60, qty=qty)
    for message in messages:
        message.lease_until = 0.0
    return messages


def begun(subscription: Subscription, qty: int = 10) -> Running:
    """A run whose handler has started."""
    running = Running(leased(subscription, qty))
    subscription.running[id(running)] = running
    return running


def test_outcomes_are_written_where_they_can_be(both, down):
    settler = Settler(0)
    for subscription in both:
        for message in leased(subscription):
            settler.put(subscription, message, Ack())
    down(BoundQueue, "settle")

    with pytest.raises(OperationalError):
        settler.flush()

    assert (ArchivedMessage.objects.count(), len(both[0].unwritten)) == (10, 10)


def test_leases_are_extended_where_they_can_be(both, down):
    running = [begun(subscription) for subscription in both]
    executions = {each: executing(each) for each in both}
    keeper = LeaseKeeper(executions, lambda subscription, thread: None)
    down(Message.objects, "set_vt")

    with pytest.raises(OperationalError):
        keeper.tick()

    ends = [{message.lease_until > 0 for message in run.messages} for run in running]
    assert ends == [{False}, {True}]


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_silent_database_delays_no_outcome_lease_or_heartbeat_of_another(
    committed, consume, held, monkeypatch
):
    answers = threading.Event()

    def silence(manager: Any, name: str) -> None:
        operation = getattr(manager, name)

        def run(on: Any, *args: Any, **options: Any) -> Any:
            where = on.using if isinstance(on, BoundQueue) else on._state.db
            if where == "other":
                answers.wait(60)
            return operation(on, *args, **options)

        monkeypatch.setattr(manager, name, run)

    for alias in ("default", "other"):
        Message.objects.using(alias).create_queue("orders")
    silence(BoundQueue, "settle")
    silence(Process.objects, "beat")
    silence(Message.objects, "set_vt")
    one, two = (queue("orders", using=alias) for alias in ("default", "other"))
    quick = Handler("orders", lambda message: None, using="other", visibility_timeout=0.6)

    def work(message: Message) -> None:
        if message.body == "long":
            held.work(message)

    slow = Handler("orders", work, using="default", visibility_timeout=0.6)
    two.send_batch([1, 2, 3])
    run = consume(handlers=[quick, slow], options={"heartbeat": 0.1})
    of_other, of_default = run.consumer.subscriptions
    until(lambda: of_other.counts.started == 3)

    one.send_batch(["long", "short"])
    held.until_begun()
    until(lambda: of_default.counts.completed == 1)
    [before] = Process.objects.values_list("heartbeat_at", flat=True)
    until(lambda: Process.objects.filter(heartbeat_at__gt=before).exists())
    time.sleep(0.7)  # longer than the lease
    read_meanwhile = one.read()
    answers.set()
    held.let_go()
    until(lambda: of_default.counts.completed == 2)

    assert read_meanwhile == []


def test_messages_are_fetched_where_they_can_be(both, down, events):
    fetcher = Fetcher(
        list(reversed(both)),  # starts with the second database
        [Settler(0)],
    )
    down(reading, "lease")

    wait = fetcher.tick()

    assert [len(each.buffer) for each in both] == [0, 10]
    [failed] = [kwargs for name, kwargs in events if name == "database_failed"]
    assert (failed["operation"], wait < failed["wait"]) == ("fetch", True)


@pytest.mark.usefixtures("both")
def test_a_consumer_that_stops_releases_messages_where_it_can(down):
    work = [Handler("orders", lambda message: None, using=alias) for alias in ("other", "default")]
    consumer = Consumer(work, Options())
    for subscription in consumer.subscriptions:
        subscription.buffer.put(leased(subscription, 5))
        begun(subscription, 5)
    down(BoundQueue, "release")
    down(Message.objects, "set_vt")

    for release in (consumer._release_buffered, consumer._release_running):
        with pytest.raises(OperationalError):
            release()

    held = [Message.objects.metrics(each.queue).in_flight for each in consumer.subscriptions]
    assert held == [10, 0]
    assert [len(each.buffer) for each in consumer.subscriptions] == [5, 0]


@pytest.mark.usefixtures("both")
def test_queues_are_maintained_where_they_can_be(monkeypatch):
    maintenance = Maintenance(["default", "other"])
    maintained: list[str] = []
    monkeypatch.setattr(maintenance, "_maintain", lambda queue: maintained.append(queue.alias))
    operation = maintenance_lease.hold

    def hold(*args: Any, using: str) -> bool:
        if using == "default":
            raise OperationalError("the server is gone")
        return operation(*args, using=using)

    monkeypatch.setattr(maintenance_lease, "hold", hold)
    maintenance.tick()

    with pytest.raises(OperationalError):
        maintenance.tick()
    maintenance.leave()

    assert maintained == ["other"]
