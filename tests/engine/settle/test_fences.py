"""A receipt settles one delivery: once per operation, and never a later delivery."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgqueue.engine.read import positions
from django_pgqueue.engine.settle import outcomes
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, Queue
from django_pgqueue.types import Receipt, State
from tests.conftest import run_sql
from tests.leasing import run_out
from tests.messages import SETTLE, bodies, everything, ids

QTY = 20
each_operation = pytest.mark.parametrize("operation", SETTLE)


@pytest.fixture
def orders(db: None) -> BoundQueue:
    """A queue with a dead-letter queue."""
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue=dead)
    return BoundQueue("orders")


# Ways to a second delivery of a message


def by_timeout(orders: BoundQueue, first: Message) -> None:
    run_out()


def by_release(orders: BoundQueue, first: Message) -> None:
    assert orders.release([first.receipt]) == [first.id]


def by_retry(orders: BoundQueue, first: Message) -> None:
    assert orders.retry({first.receipt: 0}) == [first.id]


def by_set_vt(orders: BoundQueue, first: Message) -> None:
    assert orders.set_vt(first.id, 0) == [first.id]


def by_redrive(orders: BoundQueue, first: Message) -> None:
    assert orders.fail({first.receipt: "no"}) == [first.id]
    assert BoundQueue("dead").redrive() == 1


def by_redrive_after_a_read_of_the_dead_letter(orders: BoundQueue, first: Message) -> None:
    assert orders.fail({first.receipt: "no"}) == [first.id]
    [letter] = BoundQueue("dead").read()
    assert letter.id == first.id
    BoundQueue("dead").release([letter.receipt])
    assert BoundQueue("dead").redrive() == 1


def by_a_message_made_anew(orders: BoundQueue, first: Message) -> None:
    orders.delete(first.id)
    Message.objects.create(id=first.id, queue=Message.objects.resolve("orders"), body=1)


def by_a_queue_made_anew(orders: BoundQueue, first: Message) -> None:
    queue = Message.objects.resolve("orders")
    orders.drop()
    again = Queue(id=queue.pk, name="orders")
    again.save()
    Message.objects.create(id=first.id, queue=again, body=1)


BETWEEN = [
    by_timeout,
    by_release,
    by_retry,
    by_set_vt,
    by_redrive,
    by_redrive_after_a_read_of_the_dead_letter,
    by_a_message_made_anew,
    by_a_queue_made_anew,
]


@each_operation
@pytest.mark.parametrize("between", BETWEEN, ids=lambda each: each.__name__)
def test_a_receipt_is_never_good_for_a_later_delivery(orders, between, operation):
    orders.send(1)
    [old] = orders.read()
    between(orders, old)
    [new] = orders.read()
    assert new.id == old.id
    assert new.receipt != old.receipt
    before = everything()

    settled = SETTLE[operation](orders, [old.receipt])

    assert (settled, settled.lost) == ([], [old.receipt])
    assert everything() == before
    assert SETTLE[operation](orders, [new.receipt]) == [new.id]


@each_operation
def test_reads_that_hold_nothing_are_deliveries_of_their_own(orders, operation):
    orders.send(1)
    receipts = [orders.read(vt=0)[0].receipt for _ in range(5)]

    settled = SETTLE[operation](orders, receipts)

    assert (settled, settled.lost) == ([receipts[-1].id], receipts[:-1])


@each_operation
def test_a_receipt_is_not_good_for_the_replay_of_its_message(orders, operation):
    orders.send(1)
    [old] = orders.read()
    orders.archive(old)
    assert orders.replay() == 1
    [new] = orders.read()
    before = everything()

    settled = SETTLE[operation](orders, [old.receipt])

    assert (settled, settled.lost) == ([], [old.receipt])
    assert everything() == before
    assert SETTLE[operation](orders, [new.receipt]) == [new.id]


@pytest.mark.django_db(transaction=True)
@each_operation
@pytest.mark.parametrize("count", [2, QTY - 2, QTY], ids=["few", "most", "all"])
def test_receipts_of_a_batch_are_not_good_when_the_same_messages_are_leased_together_again(
    committed, monkeypatch, operation, count
):
    monkeypatch.setattr(positions, "SWEEP_INTERVAL", 3600)
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue=dead)
    orders = BoundQueue("orders")

    def read_batch() -> list[Message]:
        positions.position_in(Message.objects.resolve("orders").opened)._bounds = positions._START
        found = orders.read(qty=QTY, vt=3600)
        assert run_sql("SELECT ids FROM pgqueue_lease") == [(ids(found),)]
        return found

    orders.send_batch(range(QTY))
    old = read_batch()
    orders.fail(dict.fromkeys([m.receipt for m in old], "no"))
    assert BoundQueue("dead").redrive() == QTY
    new = read_batch()
    assert [m.receipt.batch for m in new] == [m.receipt.batch for m in old]
    assert ids(new) == ids(old)

    settled = SETTLE[operation](orders, [m.receipt for m in old[:count]])

    assert (settled, settled.lost) == ([], [m.receipt for m in old[:count]])
    assert {(m.state, m.read_ct, m.vt) for m in LiveMessage.objects.all()} == {
        ("PROCESSING", 1, new[0].vt)
    }
    assert SETTLE[operation](orders, [m.receipt for m in new]) == ids(new)


# An operation repeated


@pytest.mark.parametrize("operation", ["archive", "complete", "retry", "release", "fail"])
@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_repeated_operation_changes_nothing(orders, operation, dead_letters):
    if not dead_letters:
        Queue.objects.filter(name="orders").update(dead_letter_queue=None)
        Queue.objects.forget_all()
    orders.send(1)
    [message] = orders.read()
    assert SETTLE[operation](orders, [message.receipt]) == [message.id]
    before = everything()

    again = SETTLE[operation](orders, [message.receipt])

    assert (again, again.lost) == ([], [message.receipt])
    assert everything() == before


def test_attempts_are_counted_once_for_each_delivery(orders):
    orders.send(1)
    for _ in range(3):
        [message] = orders.read()
        for _ in range(2):
            orders.retry({message.receipt: 0})
    [message] = orders.read()
    for _ in range(2):
        orders.complete([message.receipt])

    done = ArchivedMessage.objects.get()
    assert (done.read_ct, done.attempts) == (4, 4)


def test_a_message_that_was_given_back_counts_no_delivery(orders):
    orders.send(1)
    orders.release([orders.read()[0].receipt])

    assert LiveMessage.objects.get().read_ct == 0


def test_a_dead_letter_of_another_delivery_is_not_the_one_that_was_asked_for(orders):
    orders.send(1)
    [old] = orders.read(vt=0)
    [new] = orders.read()
    orders.fail({new.receipt: "no"})

    settled = orders.fail({old.receipt: "no"})

    assert (settled, settled.lost) == ([], [old.receipt])


# Followers in a FIFO group


@pytest.fixture
def group(orders: BoundQueue) -> list[Message]:
    """A head and two followers, leased by one reader."""
    orders.send_batch(["a1", "a2", "a3"], group="a")
    found = orders.read_grouped(qty=3)
    assert bodies(found) == ["a1", "a2", "a3"]
    return found


@each_operation
def test_a_late_reader_of_a_follower_is_refused_while_its_head_is_in_flight_again(
    orders, group, operation
):
    run_sql(
        "UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'"
        " WHERE id = %s",
        [group[0].id],
    )
    [again] = orders.read()
    assert again.id == group[0].id
    before = everything()

    settled = SETTLE[operation](orders, [m.receipt for m in group])

    assert (settled, settled.lost) == ([], [m.receipt for m in group])
    assert everything() == before


@each_operation
def test_a_reader_of_a_follower_may_settle_it_while_the_heads_delivery_is_good(
    orders, group, operation
):
    run_out()

    assert SETTLE[operation](orders, [group[2].receipt]) == [group[2].id]


@pytest.mark.parametrize("operation", ["archive", "complete", "delete", "fail"])
def test_a_reader_of_a_group_settles_one_after_the_other(orders, group, operation):
    for message in group:
        assert SETTLE[operation](orders, [message.receipt]) == [message.id]

    assert orders.metrics().length == 0


# Errors and results


def test_the_last_error_is_archived_when_deliveries_run_out(db):
    Message.objects.create_queue("orders", max_deliveries=2)
    orders = BoundQueue("orders")
    orders.send(1)
    for error in ("no such customer", "no such order"):
        [message] = orders.read()
        orders.retry({message.receipt: 0}, errors={message.receipt: error})

    assert orders.read() == []

    failed = ArchivedMessage.objects.get()
    assert failed.state == State.FAILED
    assert failed.error == "gave up after 2 deliveries; the last error: no such order"


def test_a_retry_without_an_error_keeps_the_last_one_for_the_dead_letter(orders):
    Queue.objects.filter(name="orders").update(max_deliveries=2)
    Queue.objects.forget_all()
    orders.send(1)
    [message] = orders.read()
    orders.retry({message.receipt: 0}, errors={message.receipt: "no customer"})
    orders.read(vt=0)

    assert orders.read() == []

    [letter] = BoundQueue("dead").read()
    assert letter.headers["x-dead-letter"]["reason"] == "max_deliveries"
    assert letter.headers["x-dead-letter"]["error"].endswith("the last error: no customer")


def test_results_are_archived_each_with_its_message(orders):
    orders.send_batch(range(4))
    messages = orders.read(qty=4)
    results = {messages[2].receipt: {"n": 2}, messages[0].receipt: "zero"}

    assert len(orders.complete([m.receipt for m in messages], results=results))

    found = ArchivedMessage.objects.order_by("id").values_list("result", flat=True)
    assert list(found) == ["zero", None, {"n": 2}, None]


def test_results_too_large_for_one_statement_are_archived_in_parts(orders, monkeypatch):
    monkeypatch.setattr(outcomes, "_MOST_RESULTS", 10)
    orders.send_batch(range(3))
    messages = orders.read(qty=3)
    receipts = [m.receipt for m in messages]
    lost = Receipt(messages[2].id + 1, 2, 1)
    results = dict.fromkeys(receipts, "12345678")

    with CaptureQueriesContext(connection) as queries:
        settled = orders.complete([*receipts, lost], results=results)

    assert sum("'COMPLETED'" in each["sql"] for each in queries) == 3
    assert (settled, settled.lost) == (ids(messages), [lost])
    assert [orders.result(m.id) for m in messages] == ["12345678"] * 3


def test_the_result_none_is_none(orders):
    orders.send(1)
    [message] = orders.read()

    orders.complete([message.receipt], results={message.receipt: None})

    assert orders.result(message.id) is None
