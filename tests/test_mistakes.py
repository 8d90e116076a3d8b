"""Typical first mistakes, and each one's error message: what is wrong, and what to do."""

from __future__ import annotations

import pytest
from django.core.management import CommandError
from django.db import ProgrammingError, transaction

from django_pgqueue import consumer, queue
from django_pgqueue.engine.sqlstates import UNDEFINED_TABLE, sqlstate
from django_pgqueue.errors import (
    InvalidArgument,
    InvalidMessage,
    InvalidQueueName,
    LeaseLost,
    PgQueueError,
    QueueMismatch,
    QueueNotFound,
    TransactionRefused,
)
from django_pgqueue.models import Message, Queue
from django_pgqueue.operations import AlterQueue, CreateQueue
from tests.management.calling import call

pytestmark = pytest.mark.django_db

# Each function uses the queue "orders", which exists and is empty unless the test says otherwise.


def read_in_a_transaction() -> None:
    with transaction.atomic():
        queue("orders").read()


def ack_too_late() -> None:
    queue("orders").send(1)
    [message] = queue("orders").read(vt=0.001)
    queue("orders").set_vt(message.id, 0)
    queue("orders").read()
    message.ack()


def ack_what_was_peeked() -> None:
    queue("orders").send(1)
    [message] = queue("orders").peek()
    message.ack()


def drop_a_dead_letter_queue_in_use() -> None:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("mails", dead_letter_queue="dead")
    Message.objects.drop_queue("dead")


def change_a_message() -> None:
    queue("orders").send(1)
    message = Message.objects.get()
    message.body = 2
    message.save()


def dead_letters_in_a_circle() -> None:
    orders = Queue.objects.get(name="orders")
    orders.dead_letter_queue = orders
    orders.save()


MISTAKES = {
    "a queue that does not exist": (
        lambda: queue("order").send(1),
        QueueNotFound,
        ["no queue 'order' in database 'default'", "create_queue('order')"],
    ),
    "a name with a space": (
        lambda: queue("or ders"),
        InvalidQueueName,
        ["'or ders' is not a queue name", "A-Z a-z 0-9 _ . -"],
    ),
    "a body that is not JSON": (
        lambda: queue("orders").send(object()),
        InvalidMessage,
        ["body is not JSON", "Send dicts, lists, text"],
    ),
    "NaN in a body": (
        lambda: queue("orders").send({"price": float("nan")}),
        InvalidMessage,
        ["NaN and Infinity have no JSON form"],
    ),
    "bytes in a text": (
        lambda: queue("orders").send({"raw": "\x00"}),
        InvalidMessage,
        ["NUL", "base64"],
    ),
    "a priority out of range": (
        lambda: queue("orders").send(1, priority=1000),
        InvalidArgument,
        ["priority must be a whole number from -100 to 100, not 1000"],
    ),
    "a number as a group": (
        lambda: queue("orders").send(1, group=7),
        InvalidArgument,
        ["group must be text", "Convert an id to text with str()"],
    ),
    "countdown, as in Celery": (
        lambda: queue("orders").send(1, countdown=60),
        TypeError,
        ["unexpected keyword argument 'countdown'"],
    ),
    "eta, as in Celery": (
        lambda: queue("orders").send(1, eta=None),
        TypeError,
        ["unexpected keyword argument 'eta'"],
    ),
    "a keyword misspelt": (
        lambda: queue("orders").send(1, prioritty=5),
        TypeError,
        ["unexpected keyword argument 'prioritty'"],
    ),
    "a setting of a queue misspelt": (
        lambda: Message.objects.create_queue("mails", visibility=3),
        TypeError,
        ["create_queue() got an unexpected keyword argument 'visibility'"],
    ),
    "a setting of queue().create() misspelt": (
        lambda: queue("mails").create(max_delivery=3),
        TypeError,
        ["unexpected keyword argument 'max_delivery'"],
    ),
    **{
        f"Message.objects.create {number}": (
            create,
            InvalidArgument,
            ['queue("orders").send(body)', 'Message.objects.create_queue("orders")'],
        )
        for number, create in enumerate(
            (
                lambda: Message.objects.create("orders", {"order": 7}),
                lambda: Message.objects.create(queue="orders", body={"order": 7}),
                lambda: Message.objects.create(body={"order": 7}),
            )
        )
    },
    "a negative vt": (
        lambda: queue("orders").read(vt=-5),
        InvalidArgument,
        ["vt must be zero seconds or more, not -5"],
    ),
    "a negative qty": (
        lambda: queue("orders").read(qty=-1),
        InvalidArgument,
        ["qty must be a whole number from 0"],
    ),
    "a read inside atomic()": (
        read_in_a_transaction,
        TransactionRefused,
        ["gives no lease", "Read outside atomic()", "in_transaction=True"],
    ),
    "an ack after the visibility timeout": (
        ack_too_late,
        LeaseLost,
        ["Receipt", "no longer valid", "let the new holder finish the message"],
    ),
    "an ack of a peeked message": (
        ack_what_was_peeked,
        PgQueueError,
        ["was never read", "read() it first"],
    ),
    "a text as an id": (
        lambda: queue("orders").archive("7"),
        InvalidArgument,
        ["pass a message, a receipt, an id, or a list of these, not '7'"],
    ),
    "a message saved again": (change_a_message, PgQueueError, ["immutable", "Send a new one"]),
    "drop_queue of a dead-letter queue in use": (
        drop_a_dead_letter_queue_in_use,
        PgQueueError,
        ["is the dead-letter queue of mails", "dead_letter_queue"],
    ),
    "dead letters that go round": (
        dead_letters_in_a_circle,
        InvalidArgument,
        ["would form a cycle: orders -> orders", "Leave one of these queues without"],
    ),
    "create_queue with another storage": (
        lambda: Message.objects.create_queue("orders", unlogged=True),
        QueueMismatch,
        ["exists with unlogged=False, not True", "leave unlogged out"],
    ),
    "a visibility timeout of zero": (
        lambda: Message.objects.create_queue("mails", visibility_timeout=0),
        InvalidArgument,
        ["visibility_timeout must be whole seconds, at least 1, not 0"],
    ),
    "a text as a retention": (
        lambda: CreateQueue("mails", retention="30d"),
        InvalidArgument,
        ["CreateQueue('mails'): retention must be seconds or a timedelta, not '30d'"],
    ),
    "a setting misspelt in a migration": (
        lambda: AlterQueue("orders", max_delivery=5),
        TypeError,
        ["unexpected keyword argument 'max_delivery'"],
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained(orders, own_handlers, make, error, words):
    with pytest.raises(error) as raised:
        make()

    for each in words:
        assert each.lower() in str(raised.value).lower()


@pytest.mark.parametrize("options", [["--drain"], [], ["--processes", "2"]], ids=" ".join)
def test_runconsumer_in_a_test_case_names_drain(orders, own_handlers, options):
    consumer("orders")(lambda message: None)

    with pytest.raises(CommandError, match=r"django_pgqueue\.testing\.drain\(\)"):
        call("runconsumer", "orders", *options)


def test_runconsumer_of_a_queue_without_a_handler_is_explained(committed_orders, own_handlers):
    with pytest.raises(CommandError, match=r"there is no @consumer\('mails'\) in any consumers.py"):
        call("runconsumer", "mails", "--drain")


@pytest.mark.parametrize(
    "act",
    [
        lambda: queue("unknown").send({"order": 7}),
        lambda: queue("unknown").read(),
        lambda: Message.objects.create_queue("unknown"),
        lambda: Message.objects.list_queues(),
        lambda: Message.objects.maintain_all(),
        lambda: Message.objects.bind("order.#", "unknown"),
        lambda: Message.objects.publish("orders.new", 1),
    ],
)
def test_missing_tables_are_explained(sql, act):
    sql("SET LOCAL search_path = pg_catalog")

    with pytest.raises(PgQueueError, match=r"migrate --database default") as raised:
        act()

    assert str(raised.value).count("migrate --database default") == 1
    # Still catchable as the database's own error.
    assert isinstance(raised.value, ProgrammingError)
    assert sqlstate(raised.value) == UNDEFINED_TABLE
