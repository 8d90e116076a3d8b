"""A receipt settles its own delivery once, and no later delivery."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.engine.read import positions
from django_pgqueue.models import BoundQueue, Message

pytestmark = pytest.mark.django_db(transaction=True)


def again(orders: BoundQueue) -> Message:
    """The next delivery, at a later time."""
    [message] = orders.read(vt=60)
    return message


def settled_by(orders: BoundQueue, operation: str, message: Message) -> list[int]:
    """The result of an operation with a message's receipt."""
    if operation == "set_vt":
        return orders.set_vt(message, 120)
    if operation in ("archive", "delete"):
        return getattr(orders, operation)(message)
    argument = {"retry": {message.receipt: 0}, "fail": {message.receipt: "no"}}
    return getattr(orders, operation)(argument.get(operation, [message.receipt]))


@pytest.mark.parametrize(
    "operation", ["archive", "delete", "set_vt", "complete", "retry", "release", "fail"]
)
def test_a_receipt_from_before_a_release_is_not_good_for_the_next_delivery(
    committed_orders, operation
):
    committed_orders.send(1)
    first = again(committed_orders)
    committed_orders.release([first.receipt])
    second = again(committed_orders)
    assert second.read_ct == first.read_ct == 1

    assert settled_by(committed_orders, operation, first) == []
    assert committed_orders.metrics().in_flight == 1
    assert committed_orders.archive(second) == [second.id]


def test_a_receipt_from_before_a_redrive_is_not_good_for_the_next_delivery(
    committed,
):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    orders = queue("orders")
    orders.send(1)
    first = again(orders)
    orders.fail({first.receipt: "no"})
    queue("dead").redrive()
    second = again(orders)
    assert (second.id, second.read_ct) == (first.id, first.read_ct)

    assert orders.archive(first).lost == [first.receipt]
    assert orders.archive(second) == [second.id]


@pytest.mark.parametrize("part", [20, 15, 1], ids=["whole", "part", "one"])
def test_receipts_of_a_batch_from_before_a_redrive_are_not_good_for_the_next_batch(
    committed, monkeypatch, part
):
    # Batches are then leased with the shorter statement, as one row each.
    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 3600)
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    orders = queue("orders")
    orders.send_batch(range(40))
    orders.archive(orders.read(qty=20))
    first = orders.read(qty=20, vt=60)
    orders.fail({message.receipt: "no" for message in first})
    # The next batches start at the same position as the first one.
    orders.send_batch(range(20), priority=1)
    queue("dead").redrive()
    orders.archive(orders.read(qty=20))
    second = orders.read(qty=20, vt=60)
    assert [m.id for m in second] == [m.id for m in first]
    assert [m.receipt.batch for m in second] == [m.receipt.batch for m in first] != [None] * 20

    assert orders.archive(first[:part]) == []
    assert orders.metrics().in_flight == 20
    assert len(orders.archive(second)) == 20


def test_a_retry_that_is_said_twice_counts_one_attempt(committed_orders):
    committed_orders.send(1)
    receipt = again(committed_orders).receipt

    assert committed_orders.retry({receipt: 0}) == [receipt.id]
    repeated = committed_orders.retry({receipt: 0})

    assert (repeated, repeated.lost) == ([], [receipt])
    assert again(committed_orders).attempts == 1


def test_a_release_that_is_said_twice_uncounts_one_delivery(committed_orders):
    committed_orders.send(1)
    committed_orders.set_vt(again(committed_orders), 0)
    receipt = again(committed_orders).receipt
    assert receipt.read_ct == 2

    for _ in range(2):
        committed_orders.release([receipt])

    assert again(committed_orders).read_ct == 2


def test_a_message_that_was_given_back_counts_no_delivery(committed_orders):
    committed_orders.send(1)
    committed_orders.release([again(committed_orders).receipt])

    with connection.cursor() as cursor:
        cursor.execute("SELECT read_ct FROM pgqueue_deferred")
        assert cursor.fetchall() == [(0,)]
