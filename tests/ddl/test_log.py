"""The message table as a log: each row has the id of the transaction that inserted it."""

from __future__ import annotations

import pytest

from django_pgqueue import queue
from django_pgqueue.models import Message
from tests.conftest import run_sql


@pytest.mark.parametrize("unlogged", [False, True])
def test_every_way_of_sending_notes_the_transaction(db, unlogged):
    Message.objects.create_queue("orders", unlogged=unlogged)
    orders = queue("orders")
    number = Message.objects.resolve("orders").pk
    orders.send(1)
    orders.send(2, unique="k")
    orders.send_batch(range(3), group="g")
    orders.send_batch(range(5000))  # by COPY
    Message.objects.bulk_create([Message(queue_id=number, body=1)])
    run_sql("INSERT INTO pgqueue_message (queue_id) VALUES (%s)", [number])

    [(now,)] = run_sql("SELECT pg_current_xact_id()::text::bigint")

    assert set(Message.objects.values_list("enqueued_xid", flat=True)) == {now}
    assert Message.objects.count() == 5007


@pytest.mark.django_db(transaction=True)
def test_a_dead_letter_has_the_transaction_that_moved_it(committed):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    sent = queue("orders").send(1)
    before = Message.objects.get(pk=sent).enqueued_xid
    [message] = queue("orders").read()

    message.reject()

    moved = Message.objects.get(pk=sent)
    assert moved.queue.name == "dead"
    assert moved.enqueued_xid > before
