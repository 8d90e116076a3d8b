"""No look-up of ours omits the queue, since that would search all partitions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.acks import Reject
from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message
from django_pgqueue.testing import assert_enqueued, drain
from tests.conftest import run_sql
from tests.engine.plans.plans import PARTITION, planned_queues


@pytest.fixture
def neighbours(db: None) -> dict[str, int]:
    """The queue ``orders`` with its dead-letter queue, and three other queues."""
    names = ["orders.dead", "a", "b", "c"]
    for name in names:
        Message.objects.create_queue(name)
    Message.objects.create_queue("orders", dead_letter_queue="orders.dead")
    return {name: Message.objects.resolve(name).pk for name in ["orders", *names]}


def refuse(message: Message) -> None:
    raise ValueError("refused")


def read_one(orders: BoundQueue) -> Message:
    orders.send(1, unique="one")
    [message] = orders.read()
    return message


def die(orders: BoundQueue) -> int:
    pk = orders.send(1)
    [message] = orders.read()
    orders.settle({message.receipt: Reject("no")})
    return pk


def ask(orders: BoundQueue, pk: int) -> None:
    with suppress(PgQueueError):
        orders.result(pk)


def archived(orders: BoundQueue) -> ArchivedMessage:
    orders.archive(orders.send(1))
    return ArchivedMessage.objects.get(queue__name="orders")


def queues_with_tables() -> set[int]:
    """The neighbours, and queues of other tests that a flush removed without their tables."""
    names = run_sql("SELECT relid::text FROM pg_partition_tree('pgqueue_message') WHERE level = 1")
    return {int(PARTITION.fullmatch(name)[1]) for (name,) in names}  # type: ignore[index]


def test_without_a_queue_each_one_is_in_the_plan(neighbours):
    pk = queue("orders").send(1)

    with planned_queues(connection) as planned:
        Message.objects.get(pk=pk)

    assert planned == queues_with_tables()
    assert planned >= set(neighbours.values())


#: The preparation, and the operation that is watched.
OPERATIONS: dict[str, tuple[Callable[[BoundQueue], Any], Callable[[BoundQueue, Any], Any]]] = {
    "a column that a read left out": (read_one, lambda orders, message: message.unique_key),
    "refresh_from_db": (read_one, lambda orders, message: message.refresh_from_db()),
    "delete of one": (read_one, lambda orders, message: message.delete()),
    "ack": (read_one, lambda orders, message: message.ack()),
    "nack": (read_one, lambda orders, message: message.nack(reason="no")),
    "reject": (read_one, lambda orders, message: message.reject("no")),
    "extend": (read_one, lambda orders, message: message.extend()),
    "release": (read_one, lambda orders, message: orders.release([message.receipt])),
    "cancel": (lambda orders: orders.send(1), lambda orders, pk: orders.cancel(pk)),
    "set_vt": (lambda orders: orders.send(1), lambda orders, pk: orders.set_vt(pk, 5)),
    "archive": (lambda orders: orders.send(1), lambda orders, pk: orders.archive(pk)),
    "result of one that waits": (lambda orders: orders.send(1), ask),
    "result of a dead letter": (die, ask),
    "result of one that is done": (lambda orders: archived(orders).pk, ask),
    "attempts": (lambda orders: orders.send(1), lambda orders, pk: orders.attempts(pk)),
    "body of an archived message": (archived, lambda orders, done: done.body),
    "replay": (archived, lambda orders, done: orders.replay()),
    "redrive": (die, lambda orders, pk: queue("orders.dead").redrive()),
    "peek": (lambda orders: orders.send(1), lambda orders, pk: orders.peek()),
    "pop": (lambda orders: orders.send(1), lambda orders, pk: orders.pop()),
    "purge": (lambda orders: orders.send(1), lambda orders, pk: orders.purge()),
    "maintain": (archived, lambda orders, done: orders.maintain()),
    "a consumer": (
        lambda orders: orders.send(1),
        lambda orders, pk: drain("orders", lambda message: None),
    ),
    "a consumer whose handler fails": (
        lambda orders: orders.send(1),
        lambda orders, pk: drain("orders", refuse, policies=True),
    ),
    "assert_enqueued": (
        lambda orders: orders.send(1),
        lambda orders, pk: assert_enqueued("orders", contains=1),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_plans_its_own_queue_only(neighbours, name):
    before, act = OPERATIONS[name]
    orders = queue("orders")
    given = before(orders)

    with planned_queues(connection) as planned:
        act(orders, given)

    others = {neighbours[name] for name in ("a", "b", "c")}
    assert not planned & others


def test_maintenance_finds_attempts_of_messages_that_are_gone_by_their_queue(neighbours):
    orders = queue("orders")
    stays, dies = orders.send_batch([1, 2])
    drain("orders", refuse, policies=True)
    assert {stays, dies} == {row.pk for row in queue("orders.dead").peek(qty=5)}

    with planned_queues(connection) as planned:
        orders.maintain()

    assert planned <= {neighbours["orders"], neighbours["orders.dead"]}
    assert orders.attempts(stays)


def test_a_column_is_fetched_of_a_message_that_moved_to_another_queue(neighbours):
    message = read_one(queue("orders"))
    message.reject("no")

    assert message.scheduled_at is None
    message.refresh_from_db()
    assert message.queue_id == neighbours["orders.dead"]

    queue("orders.dead").delete(message.pk)
    with pytest.raises(Message.DoesNotExist):
        message.refresh_from_db()
