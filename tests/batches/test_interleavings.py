"""Counts, ends, sends and the seal of one batch, in a forced order."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from django.db import connections

from django_pgqueue import signals
from django_pgqueue.errors import BatchSealed
from django_pgqueue.models import Batch, Message, queue
from tests.actors import begin, call, commit, rollback
from tests.conftest import run_sql
from tests.subscriptions.gates import blocked

pytestmark = pytest.mark.django_db(transaction=True)

ENDS = pytest.mark.parametrize("end", [commit, rollback], ids=["commit", "rollback"])


@pytest.fixture
def batch(committed_orders) -> Iterator[Batch]:
    """A batch of two members, the first of which has ended."""
    queue("reports").create()
    with committed_orders.batch(then=queue("reports").message(1)) as batch:
        one, _two = batch.send_batch([1, 2])
    committed_orders.archive(one)
    run_sql("SET lock_timeout = '5s'")  # no count waits for another one
    yield batch
    run_sql("RESET lock_timeout")


def count(pk: int) -> list[int]:
    """Count a batch; returns it if it is to be counted again."""
    return sorted(Batch.objects.count_members([pk], using="default"))


def add(pk: int) -> int:
    return Batch.objects.get(pk=pk).send(3)


def seal(pk: int) -> bool:
    return Batch.objects.get(pk=pk).seal()


def cancel(pk: int) -> bool:
    return Batch.objects.get(pk=pk).cancel()


def callbacks() -> list[Message]:
    return queue("reports").peek(qty=None)


def last(batch: Batch) -> int:
    """The member that has not ended."""
    [message] = queue("orders").peek(qty=5)
    return message.id


@ENDS
def test_an_end_that_is_not_committed_is_no_end(actor, batch, end):
    actor.do(begin)
    actor.do(call, "archive", "orders", [last(batch)])

    assert count(batch.pk) == []
    assert callbacks() == []
    actor.do(end)
    count(batch.pk)

    assert len(callbacks()) == (end is commit)


@ENDS
def test_who_finds_a_batch_locked_counts_it_again(actor, batch, end):
    actor.do(begin)
    assert actor.do(count, batch.pk) == []
    queue("orders").archive(last(batch))  # after the other's look

    assert count(batch.pk) == [batch.pk]
    actor.do(end)
    assert count(batch.pk) == []

    assert len(callbacks()) == 1


@ENDS
def test_of_two_counts_that_find_the_last_end_one_calls_back(actor, batch, end):
    queue("orders").archive(last(batch))
    actor.do(begin)
    assert actor.do(count, batch.pk) == []

    assert count(batch.pk) == [batch.pk]
    actor.do(end)
    assert count(batch.pk) == []

    assert len(callbacks()) == 1


@ENDS
def test_a_seal_waits_for_who_adds_a_member(actor, actors, committed_orders, end):
    adding, sealing = actors(2)
    queue("reports").create()
    batch = committed_orders.open_batch(then=queue("reports").message(1))
    adding.do(begin)
    adding.do(add, batch.pk)

    sealed = sealing.start(seal, batch.pk)
    blocked(sealed)
    adding.do(end)

    assert sealed.result(10) is True
    batch.refresh_from_db()
    assert (batch.members, len(callbacks())) == ((1, 0) if end is commit else (0, 1))


@pytest.mark.parametrize("close", [seal, cancel], ids=["seal", "cancel"])
def test_who_adds_a_member_beside_a_seal_is_refused(actor, actors, committed_orders, close):
    adding, sealing = actors(2)
    batch = committed_orders.open_batch()
    batch.send(1)
    sealing.do(begin)
    sealing.do(close, batch.pk)

    added = adding.start(add, batch.pk)
    blocked(added)
    sealing.do(commit)

    with pytest.raises(BatchSealed):
        added.result(10)
    assert len(queue("orders").peek(qty=5)) == (close is seal)


def test_a_count_beside_a_cancel_leaves_one_callback(actor, batch):
    actor.do(begin)
    actor.do(cancel, batch.pk)

    assert count(batch.pk) == [batch.pk]
    actor.do(commit)
    assert count(batch.pk) == []

    assert [each.headers["x-batch"]["cancelled"] for each in callbacks()] == [1]


def lock(pk: int) -> None:
    """Lock a message, as a handler with ``locked=True`` does while it runs."""
    [_message] = queue("orders").read(in_transaction=True)


def test_a_cancel_passes_over_a_member_that_a_transaction_holds(actor, committed_orders):
    with committed_orders.batch() as batch:
        batch.send_batch([*range(120)])
    actor.do(begin)
    actor.do(lock, 0)

    assert batch.cancel() is True
    assert 0 < batch.cancelled < 120
    actor.do(rollback)
    while count(batch.pk):
        pass

    batch.refresh_from_db()
    assert (batch.cancelled, batch.outcome) == (120, "cancelled")


def test_another_thread_adds_no_members_to_a_block(committed_orders):
    refused: list[Exception] = []

    def send(batch: Batch) -> None:
        try:
            batch.send(2)
        except BatchSealed as error:
            refused.append(error)
        finally:
            connections.close_all()

    with committed_orders.batch() as batch:
        batch.send(1)
        thread = Thread(target=send, args=[batch])
        thread.start()
        thread.join()

    assert len(refused) == 1
    assert [each.body for each in committed_orders.peek(qty=5)] == [1]


def test_a_receiver_that_fails_in_the_database_hinders_no_batch(batch, committed_orders):
    def fail(sender: str, **about: object) -> None:
        run_sql("SELECT 1 / 0")

    with committed_orders.batch(then=queue("reports").message(1)) as other:
        other.send(3)
    committed_orders.archive([each.id for each in committed_orders.peek(qty=5)])
    for signal in (signals.batch_done, signals.batch_failed, signals.batch_abandoned):
        signal.connect(fail)
    try:
        Batch.objects.count_members([batch.pk, other.pk], using="default")
    finally:
        for signal in (signals.batch_done, signals.batch_failed, signals.batch_abandoned):
            signal.disconnect(fail)

    assert len(callbacks()) == 2
