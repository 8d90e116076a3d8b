"""Typical first mistakes, and each one's error message: what is wrong, and what to do."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
from dataclasses import dataclass

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError
from django.db import DatabaseError, ProgrammingError, connection, transaction
from django.utils.timezone import now

from django_pgqueue import consumer, queue, schedule
from django_pgqueue.engine.sqlstates import READ_ONLY, UNDEFINED_TABLE, sqlstate
from django_pgqueue.errors import (
    InvalidArgument,
    InvalidMessage,
    InvalidQueueName,
    LeaseLost,
    PgQueueError,
    QueueMismatch,
    QueueNotFound,
    TransactionRefused,
    UnusableDatabase,
)
from django_pgqueue.models import Message, Queue
from django_pgqueue.operations import AlterQueue, CreateQueue
from tests.app.models import Order
from tests.management.calling import call

pytestmark = pytest.mark.django_db


@dataclass
class Parcel:
    order: int = 7


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
        ["send() got an unexpected keyword argument 'countdown': pass delay=60"],
    ),
    "eta, as in Celery": (
        lambda: queue("orders").send(1, eta=None),
        TypeError,
        ["unexpected keyword argument 'eta': pass delay=", "datetime"],
    ),
    "countdown for a batch": (
        lambda: queue("orders").send_batch([1], countdown=60),
        TypeError,
        ["send_batch() got an unexpected keyword argument 'countdown': pass delay=60"],
    ),
    "countdown, by the manager": (
        lambda: Message.objects.send("orders", 1, countdown=60),
        TypeError,
        ["send() got an unexpected keyword argument 'countdown': pass delay=60"],
    ),
    "countdown for a topic": (
        lambda: Message.objects.publish("orders.new", 1, countdown=60),
        TypeError,
        ["publish() got an unexpected keyword argument 'countdown': pass delay=60"],
    ),
    "args, as in Celery": (
        lambda: queue("orders").send("shop.tasks.charge", args=[7]),
        TypeError,
        ["'args'", "a message has one body", "use a task"],
    ),
    "queue of a send, as in Celery": (
        lambda: queue("orders").send(1, queue="mails"),
        TypeError,
        ["'queue': name the queue first: queue("],
    ),
    "retries of a send, as in Celery": (
        lambda: queue("orders").send(1, max_retries=5),
        TypeError,
        ["'max_retries'", "@consumer", "retry=Exponential("],
    ),
    "an id for a send, as in RQ": (
        lambda: queue("orders").send(1, job_id="7"),
        TypeError,
        ["'job_id'", "pass unique="],
    ),
    "a priority in words": (
        lambda: queue("orders").send(1, priority="high"),
        InvalidArgument,
        ["priority must be a whole number from -100 to 100, not 'high'"],
    ),
    "a model instance as a body": (
        lambda: queue("orders").send(Order(pk=7)),
        InvalidMessage,
        ["Order is not JSON serializable: send its pk, 7"],
    ),
    "a model instance in a body": (
        lambda: queue("orders").send_batch([{"order": Order(pk=7)}]),
        InvalidMessage,
        ["send its pk, 7"],
    ),
    "a queryset in a body": (
        lambda: queue("orders").send({"orders": Order.objects.all()}),
        InvalidMessage,
        ["values_list('pk', flat=True)"],
    ),
    "a function as a body": (
        lambda: queue("orders").send(change_a_message),
        InvalidMessage,
        ["make it a task"],
    ),
    "bytes as a body": (lambda: queue("orders").send(b"7"), InvalidMessage, ["b64encode"]),
    "a dataclass as a body": (
        lambda: queue("orders").send(Parcel()),
        InvalidMessage,
        ["send dataclasses.asdict() of it"],
    ),
    "expires in the past, as a datetime": (
        lambda: queue("orders").send(1, expires=now() - dt.timedelta(seconds=5)),
        InvalidArgument,
        ["expires must be in the future, not datetime"],
    ),
    "delay of a queue, as in Celery": (
        lambda: queue("orders").delay(7),
        AttributeError,
        ["a queue has no 'delay'. Use send(body)", "make it a task"],
    ),
    "the size of a queue, as in RQ": (
        lambda: queue("orders").count,
        AttributeError,
        ["a queue has no 'count'. Use metrics()"],
    ),
    "a method that no library has": (
        lambda: queue("orders").sned(7),
        AttributeError,
        ["object has no attribute 'sned'"],
    ),
    "retry of an id": (
        lambda: queue("orders").retry(7),
        InvalidArgument,
        ["not 7", "retry({message.receipt: 30})", "replay(ids=[7])", "redrive(ids=[7])"],
    ),
    "retry of an id, with its delay": (
        lambda: queue("orders").retry({7: 0}),
        InvalidArgument,
        ["7 is not a receipt", "replay(ids=[7])", "redrive(ids=[7])"],
    ),
    "requeue": (
        lambda: queue("orders").requeue(7),
        AttributeError,
        ["Use replay(ids=[7])", "redrive(ids=[7])"],
    ),
    "a keyword misspelt": (
        lambda: queue("orders").send(1, prioritty=5),
        TypeError,
        ["unexpected keyword argument 'prioritty'. Did you mean 'priority'?"],
    ),
    "a setting of a queue misspelt": (
        lambda: Message.objects.create_queue("mails", visibility=3),
        TypeError,
        ["create_queue() got an unexpected keyword argument 'visibility'", "visibility_timeout=30"],
    ),
    "a setting of queue().create() misspelt": (
        lambda: queue("mails").create(max_delivery=3),
        TypeError,
        ["create() got an unexpected keyword argument 'max_delivery'", "'max_deliveries'?"],
    ),
    "max_retries of a queue": (
        lambda: queue("mails").create(max_retries=5),
        TypeError,
        ["'max_retries': pass max_deliveries=20", "@consumer"],
    ),
    "max_retries of a queue in a migration": (
        lambda: CreateQueue("mails", max_retries=5),
        TypeError,
        ["'max_retries': pass max_deliveries=20"],
    ),
    "max_retries of a consumer, as in Celery": (
        lambda: consumer("orders", max_retries=5),
        TypeError,
        ["consumer() got an unexpected keyword argument 'max_retries'", "retry=Exponential("],
    ),
    "time_limit of a consumer, as in Celery": (
        lambda: consumer("orders", time_limit=60),
        TypeError,
        ["'time_limit': pass timeout=60"],
    ),
    "the timezone of a schedule": (
        lambda: schedule("0 4 * * *", timezone="UTC"),
        TypeError,
        ["'timezone': pass tz="],
    ),
    "a length of time as the times of a schedule": (
        lambda: schedule(dt.timedelta(hours=1)),
        InvalidArgument,
        ["a cron expression is text", "@schedule(every=30)"],
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


# In async code


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: queue("orders").send(1), "await queue('orders').asend(...)"),
        (lambda: queue("orders").read(), "await queue('orders').aread(...)"),
        (lambda: Message.objects.send("orders", 1), "await queue('orders').asend(...)"),
        (lambda: queue("orders").redrive(), "sync_to_async(queue('orders').redrive)(...)"),
        (lambda: Message.objects.publish("orders.new", 1), "apublish()"),
        (lambda: Message.objects.create_queue("mails"), "sync_to_async(method)(...)"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_method_in_async_code_names_its_async_twin(committed_orders, act, words, cached):
    (Queue.objects.resolve if cached else Queue.objects.forget)("orders", "default")

    async def view() -> None:
        act()

    with pytest.raises(SynchronousOnlyOperation) as raised:
        asyncio.run(view())

    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["ack", "nack", "reject"])
def test_a_method_of_a_message_in_async_code_names_its_async_twin(committed_orders, name):
    committed_orders.send(1)
    [message] = committed_orders.read()

    async def view() -> None:
        getattr(message, name)()

    with pytest.raises(SynchronousOnlyOperation, match=rf"await message\.a{name}\("):
        asyncio.run(view())


# In a database that cannot hold queues


@pytest.mark.parametrize(
    "act",
    [
        lambda: queue("orders").send(1),
        lambda: queue("orders").send_batch([1, 2]),
        lambda: queue("orders").read(),
        lambda: Message.objects.create_queue("mails"),
    ],
)
def test_a_database_that_takes_no_writes_is_explained(committed_orders, act):
    Queue.objects.resolve("orders", "default")
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")

    try:
        with pytest.raises(UnusableDatabase) as raised:
            act()
    finally:
        connection.close()

    for words in ("'default' takes no writes", "target_session_attrs", "standby"):
        assert words in str(raised.value)
    assert isinstance(raised.value, DatabaseError)
    assert sqlstate(raised.value) == READ_ONLY


def in_a_project(settings: str, code: str) -> str:
    """The last line on stderr of a program with these settings."""
    start = f"from django.conf import settings; settings.configure({settings})"
    run = subprocess.run(
        [sys.executable, "-c", f"{start}\n{code}"], capture_output=True, text=True, check=False
    )
    return run.stderr.strip().splitlines()[-1]


SQLITE = "DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}"
INSTALLED = f"{SQLITE}, INSTALLED_APPS=['django_pgqueue']"


@pytest.mark.parametrize(
    "act", ["queue('orders').send(1)", "queue('orders').read()", "queue('orders').create()"]
)
def test_a_database_that_is_not_postgresql_is_explained(act):
    code = f"import django; django.setup(); from django_pgqueue import queue; {act}"

    said = in_a_project(INSTALLED, code)

    assert "UnusableDatabase: Database 'default' is SQLite, but queues are in PostgreSQL" in said
    assert "PGQUEUE['DATABASE']" in said


def test_psycopg2_in_place_of_psycopg_3_is_explained():
    code = "import sys; sys.modules['psycopg'] = None; import django; django.setup()"

    said = in_a_project(INSTALLED, code)

    assert "ImportError: django_pgqueue needs psycopg 3, which cannot be imported" in said
    assert "pip install 'psycopg[binary]'. psycopg2 does not replace it" in said


@pytest.mark.parametrize("name", ["queue", "schedule"])
def test_an_app_that_is_not_installed_is_explained(name):
    code = f"import django; django.setup(); from django_pgqueue import {name}; {name}('orders')"

    said = in_a_project(SQLITE, code)

    assert "ImproperlyConfigured: 'django_pgqueue' is not in INSTALLED_APPS: add it" in said
