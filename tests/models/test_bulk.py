"""Operations on many messages: in steps, by any process, and never more than was asked."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils.timezone import now

from django_pgqueue import signals
from django_pgqueue.models import (
    ArchivedMessage,
    BoundQueue,
    Message,
    Operation,
    Queue,
    bulk,
    queue,
)
from django_pgqueue.models.bulk import Kind
from tests.actors import Actor, execute, rollback
from tests.actors import begin as begin_block


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PART", 10)


def begin(name: str, kind: Kind, ids: list[int], **values: Any) -> Operation:
    found = Queue.objects.get(name=name)
    return Operation.objects.begin(found, kind, ids, values)


def drive() -> None:
    while (wait := Operation.objects.drive(using="default")) is not None:
        time.sleep(wait)


@pytest.fixture
def dead(orders: BoundQueue) -> list[int]:
    """The ids of 25 dead letters of orders."""
    target = Message.objects.create_queue("dead")
    Queue.objects.filter(name="orders").update(dead_letter_queue=target)
    Queue.objects.forget_all()
    ids = orders.send_batch(list(range(25)))
    for message in orders.read(qty=25):
        message.reject("no")
    return ids


def test_an_operation_goes_in_steps_and_counts(
    orders: BoundQueue, dead: list[int], small_parts: None
) -> None:
    operation = begin("dead", Kind.REDRIVE, dead)
    seen = []
    while Operation.objects.drive(0.0001, using="default") is not None:
        operation.refresh_from_db()
        seen.append(operation.done)

    operation.refresh_from_db()
    assert seen == [10, 20]
    assert (operation.state, operation.done, operation.passed) == ("done", 25, 0)
    assert operation.finished_at is not None
    assert orders.metrics().length == 25
    assert not operation.parts.exists()


def test_each_kind_does_what_it_says(orders: BoundQueue) -> None:
    ids = orders.send_batch(list(range(4)), delay=60)
    other = orders.send_batch([8, 9])
    [failed] = orders.read()
    failed.reject("no")

    begin("orders", Kind.READABLE, ids[:1])
    begin("orders", Kind.ARCHIVE, ids[1:2], username="ann")
    begin("orders", Kind.DELETE, ids[2:3])
    begin("orders", Kind.REPLAY, [failed.id])
    drive()

    by_hand = ArchivedMessage.objects.get(pk=ids[1])
    assert (by_hand.state, by_hand.error) == ("CANCELLED", "archived by hand, by ann")
    assert not Message.objects.filter(pk=ids[2]).exists()
    assert [m.body for m in orders.read(qty=9)] == [0, 9, 8]
    begin("orders", Kind.DISCARD, [failed.id])
    drive()
    assert failed.id == other[0]
    assert not Message.objects.filter(pk=failed.id).exists()
    assert not ArchivedMessage.objects.filter(pk=failed.id).exists()


def test_discarding_leaves_messages_in_the_queue_alone(orders: BoundQueue) -> None:
    live, done = orders.send_batch([1, 2])
    orders.archive(done)

    operation = begin("orders", Kind.DISCARD, [live, done])
    drive()

    operation.refresh_from_db()
    assert (operation.done, operation.passed) == (1, 1)
    assert list(Message.objects.values_list("pk", flat=True)) == [live]


@pytest.mark.parametrize("size", [3, 30])
@pytest.mark.parametrize("kind", [Kind.READABLE, Kind.ARCHIVE, Kind.DELETE, Kind.PURGE])
def test_messages_in_flight_are_left_alone_unless_asked_for(
    orders: BoundQueue, kind: Kind, size: int
) -> None:
    ids = orders.send_batch(list(range(size + 2)))
    held = orders.read(qty=size, vt=60)

    left = begin("orders", kind, ids)
    drive()

    left.refresh_from_db()
    assert (left.done, left.passed) == (2, size)
    assert not orders.archive(held[:1]).lost
    asked = begin("orders", kind, [m.id for m in held], in_flight=True)
    drive()
    asked.refresh_from_db()
    assert (asked.done, asked.passed) == (size - 1, 1)


def test_a_rate_is_kept(
    orders: BoundQueue, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = begin("dead", Kind.REDRIVE, dead, rate=50)
    start = now()
    done = []

    for milliseconds in (0, 0, 60, 100, 150):
        at = start + dt.timedelta(milliseconds=milliseconds)
        monkeypatch.setattr(bulk, "now", lambda at=at: at)
        wait = Operation.objects._step(operation.pk, "default")
        operation.refresh_from_db()
        done.append((operation.done, wait))

    assert done == [(5, 0.0), (5, 0.1), (5, 0.04), (10, 0.0), (10, 0.05)]


def test_an_operation_is_stopped_and_resumed(
    orders: BoundQueue, dead: list[int], small_parts: None
) -> None:
    operation = begin("dead", Kind.REDRIVE, dead)
    Operation.objects.drive(0.0001, using="default")

    assert operation.stop()
    assert not operation.stop()
    assert Operation.objects.drive(using="default") is None
    operation.refresh_from_db()
    assert (operation.done, operation.left) == (10, 15)
    assert operation.resume()
    drive()

    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("done", 25)


def test_an_operation_whose_target_is_gone_says_so(orders: BoundQueue, dead: list[int]) -> None:
    operation = begin("dead", Kind.REDRIVE, dead, target="nowhere")

    drive()

    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("failed", 0)
    assert "nowhere" in operation.error
    assert queue("dead").metrics().length == 25


def test_dead_letters_without_a_source_are_passed_over(orders: BoundQueue, dead: list[int]) -> None:
    stray = queue("dead").send("came by itself")
    operation = begin("dead", Kind.REDRIVE, [*dead, stray])

    drive()

    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.passed) == ("done", 25, 1)


def test_the_end_is_told_once(orders: BoundQueue, dead: list[int]) -> None:
    told = []

    def listen(operation: Operation, **kwargs: Any) -> None:
        told.append((operation.state, operation.done))

    signals.operation_ended.connect(listen)
    try:
        begin("dead", Kind.REDRIVE, dead)
        drive()
        drive()
    finally:
        signals.operation_ended.disconnect(listen)

    assert told == [("done", 25)]


@pytest.mark.django_db(transaction=True)
def test_a_step_that_is_cut_off_changes_nothing(committed_orders: BoundQueue) -> None:
    ids = committed_orders.send_batch([1, 2, 3])
    operation = begin("orders", Kind.REPLAY, ids)
    committed_orders.archive(ids)

    with transaction.atomic():
        Operation.objects._step(operation.pk, "default")
        transaction.set_rollback(True)

    assert committed_orders.metrics().length == 0
    drive()
    operation.refresh_from_db()
    assert (operation.done, committed_orders.metrics().length) == (3, 3)


@pytest.mark.django_db(transaction=True)
def test_many_processes_touch_no_message_twice(
    committed_orders: BoundQueue, small_parts: None
) -> None:
    ids = committed_orders.send_batch(list(range(200)))
    committed_orders.archive(ids)
    operation = begin("orders", Kind.REPLAY, ids)

    def work() -> None:
        try:
            drive()
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drive()

    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("done", 200)
    assert committed_orders.metrics().length == 200


@pytest.mark.django_db(transaction=True)
def test_a_step_waits_a_moment_only_for_messages_that_others_hold(
    committed_orders: BoundQueue, actor: Actor
) -> None:
    [pk] = committed_orders.send_batch([1], delay=60)
    operation = begin("orders", Kind.DELETE, [pk])
    actor.do(begin_block)
    actor.do(execute, "SELECT 1 FROM pgqueue_deferred WHERE id = %s FOR UPDATE", [pk])

    wait = Operation.objects._step(operation.pk, "default")

    operation.refresh_from_db()
    assert (wait, operation.done, operation.state) == (1.0, 0, "running")
    actor.do(rollback)
    drive()
    operation.refresh_from_db()
    assert operation.done == 1
