"""Operations on a subscription's messages by id, and on those of its source."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_pgqueue.acks import Failure
from django_pgqueue.errors import MessageFailed, MessageNotFound, ResultNotReady
from django_pgqueue.models import Attempt, AuditEntry, Message, Queue, queue
from tests.subscriptions.messages import numbers, send

pytestmark = pytest.mark.django_db(transaction=True)


def count(table):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return cursor.fetchone()[0]


def failure(text="no"):
    return Failure.of(ValueError(text), 1)


def entries(operation):
    rows = AuditEntry.objects.filter(operation=operation).order_by("pk")
    return [(row.queue_name, row.count) for row in rows]


# Results and attempts


def test_a_result_is_not_ready_until_the_message_is_done(orders, audit):
    [pk] = send(orders, 0)
    audit.alter(archive_completed=True)
    with pytest.raises(ResultNotReady, match="PENDING"):
        audit.result(pk)

    [message] = audit.read()
    with pytest.raises(ResultNotReady, match="PROCESSING"):
        audit.result(pk)

    audit.complete([message.receipt], results={message.receipt: {"kept": 1}})
    assert audit.result(pk) == audit.wait(pk) == {"kept": 1}
    with pytest.raises(ResultNotReady):
        orders.result(pk)


def test_a_subscription_without_an_archive_says_that_it_keeps_no_results(orders, audit):
    [pk] = send(orders, 0)
    audit.archive(audit.read())

    with pytest.raises(MessageNotFound, match="archive_completed"):
        audit.result(pk)
    with pytest.raises(MessageNotFound, match="retention"):
        orders.result(pk + 1)


def test_a_dead_letter_is_found_by_the_id_of_its_message(orders, audit):
    queue("dead").create()
    audit.alter(dead_letter_queue="dead")
    [pk] = send(orders, 0)
    [message] = audit.read()
    audit.fail({message.receipt: "no such order"}, failures={message.receipt: failure()})

    with pytest.raises(MessageFailed, match="no such order"):
        audit.result(pk)
    [letter] = queue("dead").peek()
    assert letter.headers["x-dead-letter"]["id"] == pk
    assert [each.message for each in queue("dead").attempts(letter.id)] == ["no"]


def test_attempts_of_a_queue_and_its_subscriptions_are_apart(orders, audit, settings):
    settings.PGQUEUE = {"ATTEMPTS_KEPT": 2}
    queue("mails").subscribe(to="orders", start="earliest")
    mails = queue("mails")
    [pk] = send(orders, 0)
    for name in ("audit", "mails", "orders"):
        reader = queue(name)
        for number in range(3):
            [message] = reader.read()
            text = f"{name} {number}"
            reader.retry({message.receipt: 0}, failures={message.receipt: failure(text)})

    for reader in (orders, audit, mails):
        assert [each.message for each in reader.attempts(pk)] == [
            f"{reader.name} 1",
            f"{reader.name} 2",
        ]
    assert Attempt.objects.count() == 6


# Messages by id


def test_a_column_that_was_left_out_is_read_from_the_source(orders, audit):
    queue("mails").subscribe(to="orders", start="earliest")
    orders.send({"n": 0}, unique="order 0")
    [held] = queue("mails").read()
    queue("mails").release([held.receipt])

    [message] = audit.read()
    assert message.unique_key == "order 0"
    message.refresh_from_db()
    assert message.body == {"n": 0}


def test_a_copy_is_found_by_its_id_and_its_queue(orders, audit):
    [pk] = send(orders, 0)
    audit.release([audit.read()[0].receipt])

    found = {m.queue.name: m for m in Message.objects.filter(pk=pk).select_related("queue")}
    assert set(found) == {"orders", "audit"}
    assert Message.objects.get(pk=pk, queue__name="audit").queue.name == "audit"


# Purge


def test_purge_takes_everything_and_skips_what_is_unread(orders, audit):
    send(orders, *range(20))
    got = audit.read(qty=10)
    audit.retry({got[0].receipt: 60.0})
    told = []

    assert audit.purge(progress=told.append) == 20
    assert told[-1] == 20
    assert audit.metrics().length == 0
    assert audit.read(qty=30) == []
    assert len(orders.peek(qty=None)) == 20
    assert entries("purge") == [("audit", 20)]
    send(orders, 100)
    assert numbers(audit.read(qty=30)) == [100]


def test_purge_of_the_source_leaves_a_subscription_what_it_needs(orders, audit):
    send(orders, *range(4))
    audit.read(qty=1, vt=0)

    assert orders.purge() == 4
    assert sorted(numbers(audit.read(qty=10))) == [0, 1, 2, 3]


# Erasure


def test_an_erased_message_reaches_no_subscription(orders, audit):
    *_, kept = send(orders, *range(4))
    first, second = audit.read(qty=2)
    audit.retry({second.receipt: 0})

    deleted, _ = Message.objects.filter(queue__name="orders", pk__lt=kept).delete()

    assert deleted == 3
    assert audit.archive(first) == []
    assert numbers(audit.read(qty=10)) == [3]
    assert count("pgqueue_message") == 1
    # The retry made both messages of its batch the subscription's own.
    assert entries("discard") == [("audit", 2), ("orders", 3)]


def test_an_erased_message_takes_its_dead_letters_along(orders, audit):
    queue("dead").create()
    audit.alter(dead_letter_queue="dead")
    [pk, _] = send(orders, 0, 1)
    for message in audit.read(qty=2):
        audit.fail({message.receipt: "no"})

    Message.objects.get(queue__name="orders", pk=pk).delete()

    assert numbers(queue("dead").peek(qty=5)) == [1]
    assert sorted(entries("discard")) == [("dead", 1), ("orders", 1)]


def test_an_erasure_ends_before_other_deletions_of_its_transaction(orders, audit):
    erased, deleted = send(orders, 0, 1)
    with transaction.atomic():
        Message.objects.filter(pk=erased).delete()
        orders.delete([deleted])

    assert numbers(audit.read(qty=5)) == [1]


def test_a_deletion_by_id_leaves_the_message_to_subscriptions(orders, audit):
    [pk] = send(orders, 0)
    assert orders.delete([pk]) == [pk]

    assert numbers(audit.read(qty=5)) == [0]


def test_operators_settle_leased_messages_of_a_subscription_by_id(orders, audit):
    archived, deleted, cancelled, later, unread = send(orders, *range(5))
    audit.read(qty=4)

    assert audit.set_vt([later], 60) == [later]
    assert audit.delete([deleted, unread]).lost == [unread]
    assert audit.cancel([cancelled]) == [cancelled]
    assert audit.archive([archived]) == [archived]
    assert audit.metrics().length == 2
    assert Queue.objects.get(name="audit").archive.count() == 2
