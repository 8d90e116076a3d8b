"""archive_and_read: the last batch's ack and the next read in one commit."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgqueue.errors import InvalidArgument, QueueNotFound, TransactionRefused
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message
from django_pgqueue.types import Receipt
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)


def ids(messages: list[Message]) -> list[int]:
    return [message.id for message in messages]


def test_a_queue_is_worked_through_batch_by_batch(committed_orders: BoundQueue) -> None:
    sent = committed_orders.send_batch(range(25))

    done: list[Message] = []
    read: list[int] = []
    while True:
        settled, done = committed_orders.archive_and_read(done, qty=10)
        assert settled == read[-len(settled) :] if settled else read == []
        if not done:
            break
        read += ids(done)

    assert read == sent
    assert ArchivedMessage.objects.count() == 25
    assert not LiveMessage.objects.exists()


def test_both_go_in_one_round_trip(committed_orders: BoundQueue) -> None:
    committed_orders.send_batch(range(20))
    batch = committed_orders.read(qty=5)

    with CaptureQueriesContext(connection) as queries:
        settled, batch = committed_orders.archive_and_read(batch, qty=5)

    assert (len(settled), len(batch), len(queries)) == (5, 5, 1)


def test_what_was_read_again_since_is_lost_and_not_archived(committed_orders: BoundQueue) -> None:
    pk = committed_orders.send(1)
    [first] = committed_orders.read(vt=0)
    [again] = committed_orders.read(vt=60)

    settled, messages = committed_orders.archive_and_read(first)

    assert (settled, settled.lost, messages) == ([], [Receipt(pk, 1)], [])
    assert LiveMessage.objects.get().read_ct == again.read_ct == 2


def test_a_message_whose_lease_ran_out_is_archived_and_not_read_again(
    committed_orders: BoundQueue,
) -> None:
    committed_orders.send(1)
    batch = committed_orders.read(vt=0)

    settled, messages = committed_orders.archive_and_read(batch)

    assert (settled, messages) == (ids(batch), [])


def test_by_bare_ids_it_acts_on_what_stands_there(committed_orders: BoundQueue) -> None:
    one, two = committed_orders.send_batch([1, 2])

    settled, messages = committed_orders.archive_and_read([one, two + 1000])

    assert (settled, settled.lost, ids(messages)) == ([one], [two + 1000], [two])


def test_when_the_read_fails_nothing_is_archived(committed_orders: BoundQueue) -> None:
    committed_orders.send_batch([1, 2])
    batch = committed_orders.read()

    with pytest.raises(InvalidArgument):
        committed_orders.archive_and_read(batch, qty=-1)
    run_sql("ALTER TABLE pgqueue_deferred ADD CONSTRAINT never CHECK (read_ct < 1) NOT VALID")
    try:
        with pytest.raises(IntegrityError):
            committed_orders.archive_and_read(batch)
    finally:
        run_sql("ALTER TABLE pgqueue_deferred DROP CONSTRAINT never")

    assert not ArchivedMessage.objects.exists()
    assert committed_orders.archive(batch) == ids(batch)


def test_groups_and_dead_letters_go_on(committed_orders: BoundQueue) -> None:
    committed_orders.send_batch(["a1", "a2", "a3"], group="a")

    done: list[Message] = []
    seen = []
    while True:
        _, done = committed_orders.archive_and_read(done, qty=10)
        if not done:
            break
        seen += [message.body for message in done]

    assert seen == ["a1", "a2", "a3"]


def test_it_works_too_where_statements_are_bound_by_the_server(
    committed_orders: BoundQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.features, "uses_server_side_binding", True, raising=False)
    committed_orders.send_batch(range(4))
    batch = committed_orders.read(qty=2)

    settled, messages = committed_orders.archive_and_read(batch, qty=2)

    assert (settled, [message.body for message in messages]) == (ids(batch), [2, 3])


def test_it_is_refused_inside_a_transaction(committed_orders: BoundQueue) -> None:
    with transaction.atomic(), pytest.raises(TransactionRefused):
        committed_orders.archive_and_read([])


def test_an_unknown_queue_is_named(committed: None) -> None:
    with pytest.raises(QueueNotFound, match="nowhere"):
        Message.objects.archive_and_read("nowhere", [])
