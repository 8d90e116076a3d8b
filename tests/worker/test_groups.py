"""FIFO groups in a consumer: leased together, and run one after another."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgqueue.acks import Ack, Nack
from django_pgqueue.engine.leases.batches import rescue
from django_pgqueue.engine.read import reading
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.models import ArchivedMessage, Message, Process, Queue, queue
from django_pgqueue.retries import Constant
from django_pgqueue.worker.endings import Release
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Settlement
from tests.conftest import run_sql
from tests.leasing import follow, lease
from tests.waiting import until
from tests.worker.consuming import live, outcomes, steal

pytestmark = pytest.mark.django_db(transaction=True)

POLICIES = ["NACK_ON_ERROR", "TRANSACTIONAL", "ACK_FIRST"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages in each read of a consumer."""
    found: list[int] = []
    read = reading.lease

    def counted(*args: Any, **options: Any) -> list[Delivery]:
        messages = read(*args, **options)
        found.append(len(messages))
        return messages

    monkeypatch.setattr(reading, "lease", counted)
    return found


def deliveries() -> list[int]:
    """The number of deliveries of each archived message."""
    return list(ArchivedMessage.objects.order_by("id").values_list("read_ct", flat=True))


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_messages_of_a_group_share_a_read_and_run_one_by_one(
    committed_orders, drain, reads, policy
):
    bodies, running, seen = list(range(30)), threading.Semaphore(), []
    committed_orders.send_batch(bodies, group="one")

    def work(message: Message) -> None:
        assert running.acquire(blocking=False), "two of one group at a time"
        seen.append(message.body)
        running.release()

    drain(work, ack_policy=policy, max_workers=4)

    assert seen == bodies
    assert set(outcomes().values()) == {"COMPLETED"}
    assert deliveries() == [1] * 30
    assert sum(reads) < 15


def test_messages_behind_one_that_failed_wait_for_it_uncounted(committed_orders, drain):
    committed_orders.send_batch([1, 2, 3, 4], group="one")
    seen: list[int] = []

    def work(message: Message) -> None:
        seen.append(message.body)
        if seen == [1, 2]:
            raise ValueError("not yet")

    drain(work, retry=Constant(seconds=0.05, max_attempts=5))

    assert seen == [1, 2, 2, 3, 4]
    assert deliveries() == [1, 2, 1, 1]


def test_messages_behind_one_that_was_rejected_go_on(committed_orders, drain):
    committed_orders.send_batch([1, 2, 3], group="one")

    def work(message: Message) -> None:
        if message.body == 1:
            message.reject("never")

    drain(work)

    assert list(outcomes().values()) == ["FAILED", "COMPLETED", "COMPLETED"]
    assert deliveries() == [1, 1, 1]


def test_messages_behind_one_whose_lease_was_lost_are_not_run(committed_orders, consume, held):
    ids = committed_orders.send_batch([1, 2, 3], group="one")
    seen: list[int] = []

    def work(message: Message) -> None:
        seen.append(message.body)
        held.work(message)

    run = consume(work)
    held.until_begun()
    until(lambda: len(run.subscription.buffer.groups) == 2)
    [running] = run.subscription.running.values()
    stolen = steal(running.messages[0])
    held.let_go()
    until(lambda: run.subscription.counts.lost == 3)

    assert stolen == ids[:1]
    assert seen == [1]
    assert outcomes() == {}


def test_a_long_group_delays_no_other_group(committed_orders, consume, held):
    committed_orders.send_batch(["first"] * 200, group="first")
    seen: list[str] = []

    def work(message: Message) -> None:
        seen.append(message.body)
        if message.body == "first":
            held.work(message)

    run = consume(work, max_workers=2)
    held.until_begun()
    until(lambda: len(run.subscription.buffer.groups) > 0)
    committed_orders.send_batch(["second"] * 5, group="second")

    until(lambda: seen.count("second") == 5)
    assert seen.count("first") == 1


def test_followers_are_released_uncounted_when_the_process_stops(committed_orders, consume, held):
    ids = committed_orders.send_batch(range(6), group="one")

    run = consume(held.work)
    held.until_begun()
    until(lambda: len(run.subscription.buffer.groups) == 5)
    run.consumer.stop()
    until(lambda: not run.subscription.buffer.groups)
    held.let_go()
    run.wait()

    assert outcomes() == {ids[0]: "COMPLETED"}
    assert [(pk, reads) for pk, _state, reads, _attempts in live()] == [(pk, 0) for pk in ids[1:]]
    assert [message.id for message in committed_orders.read_grouped(qty=9)] == ids[1:]


def test_followers_that_wait_for_half_their_lease_are_released(committed_orders, consume, held):
    ids = committed_orders.send_batch(range(4), group="one")

    run = consume(held.work, visibility_timeout=1)
    held.until_begun()
    until(lambda: len(run.subscription.buffer.groups) == 3)
    until(lambda: not run.subscription.buffer.groups)
    held.let_go()
    until(lambda: len(outcomes()) == 4)

    assert sorted(outcomes()) == ids
    assert deliveries() == [1] * 4


def test_followers_count_for_max_messages(committed_orders, consume):
    committed_orders.send_batch(range(10), group="one")
    seen: list[int] = []

    run = consume(lambda message: seen.append(message.body), options={"max_messages": 3})
    run.wait()

    assert seen == [0, 1, 2]
    assert len(live()) == 7


def test_a_suspect_waits_until_it_is_the_head_of_its_group(committed_orders, consume, held):
    ids = committed_orders.send_batch([1, 2, 3], group="one")
    # Two deliveries without an outcome.
    run_sql("UPDATE pgqueue_waiting SET read_ct = 2 WHERE id = %s", ids[1:2])

    run = consume(held.work)
    held.until_begun()
    [started] = [running.messages for running in run.subscription.running.values()]
    followers = len(run.subscription.buffer.groups)
    held.let_go()
    until(lambda: len(outcomes()) == 3)

    assert [message.id for message in started] == ids[:1]
    assert followers == 0
    assert deliveries() == [1, 3, 1]


def test_followers_held_by_a_dead_process_are_released_at_once(committed_orders):
    ids = committed_orders.send_batch(range(3), group="one")
    dead = Process.objects.register(["orders"], version="", using="default")
    orders = Queue.objects.get(name="orders")
    heads = lease(orders, vt=3600, process_id=dead.pk)
    follow(orders, [heads[0].receipt], vt=3600, qty=5, process_id=dead.pk)

    rescued = rescue(orders.opened, dead.pk)

    assert rescued == 3
    assert [message.id for message in committed_orders.read_grouped(qty=5)] == ids


# Locked


def test_locked_consumers_start_as_many_messages_of_a_group_as_its_limit_permits(
    committed, consume
):
    Message.objects.create_queue("orders", group_limit=2)
    orders, begun, finish = queue("orders"), threading.Semaphore(0), threading.Event()

    def work(message: Message) -> None:
        begun.release()
        finish.wait(30)

    for n in range(5):
        orders.send(n, group="a")
    consume(work, locked=True, max_workers=3)

    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)
    orders.send("b", group="b")
    assert begun.acquire(timeout=10)
    finish.set()
    until(lambda: set(outcomes().values()) == {"COMPLETED"} and len(outcomes()) == 6)


@pytest.mark.parametrize("limit", [None, 2])
def test_locked_consumers_start_new_groups_beside_a_busy_one(committed, consume, limit):
    Message.objects.create_queue("orders", group_limit=limit)
    orders, done = queue("orders"), threading.Semaphore(0)

    def work(message: Message) -> None:
        time.sleep(0.01)
        if message.group != "busy":
            done.release()

    for n in range(400):
        orders.send(n, group="busy")
    consume(work, locked=True, max_workers=3)
    for group in "abc":
        orders.send(group, group=group)

    assert all(done.acquire(timeout=10) for _ in "abc")
    until(lambda: len(outcomes()) == 403, 60)


def test_followers_are_released_before_retries_are_written(monkeypatch):
    """Once a head's retry is written, another process may lease it, and the release is lost."""
    written: list[type] = []
    settler = Settler(0.0)
    monkeypatch.setattr(
        settler, "_write", lambda queue, some, ran: written.extend(type(e.outcome) for e in some)
    )
    outcomes = [Nack(0.0), Release(), Nack(0.0), Ack(), Release()]
    unwritten = deque(Settlement(Message(), outcome, ran=True) for outcome in outcomes)

    settler._write_some(SimpleNamespace(unwritten=unwritten))

    assert written == [Release, Release, Nack, Nack, Ack]
    assert not unwritten
