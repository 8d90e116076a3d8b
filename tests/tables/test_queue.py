"""The Queue model, and each process's cache of queues."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import transaction
from django.utils.connection import ConnectionDoesNotExist

from django_pgqueue.errors import InvalidArgument, InvalidQueueName, QueueNotFound
from django_pgqueue.models import LiveMessage, Message, Queue
from tests.actors import begin, call, commit
from tests.conftest import rolled_back, run_sql
from tests.factories import QueueFactory

# The model


def test_saving_a_queue_makes_its_tables_and_deleting_it_drops_them(db):
    queue = QueueFactory(name="mails")
    pk = Message.objects.send("mails", 1)
    assert Message.objects.read("mails")[0].id == pk

    assert queue.delete() == (1, {"django_pgqueue.Queue": 1})

    assert run_sql("SELECT to_regclass(%s)", [queue.tables["message"]]) == [(None,)]
    assert not LiveMessage.objects.exists()


def test_changing_a_queue_keeps_its_messages(orders):
    pk = orders.send(1)
    queue = Queue.objects.get()
    queue.visibility_timeout = 99
    queue.name = "Orders-2"
    queue.save()

    [message] = Message.objects.read("orders-2")

    assert (message.id, (message.vt - message.first_read_at).total_seconds()) == (pk, 99)


def test_deleting_a_queryset_of_queues_drops_each(db):
    for name in ("a", "b", "c"):
        Message.objects.send(QueueFactory(name=name), 1)

    deleted = Queue.objects.exclude(name="b").delete()

    assert deleted == (2, {"django_pgqueue.Queue": 2})
    assert Message.objects.count() == LiveMessage.objects.count() == 1


def test_queues_without_tables_are_not_made(db):
    with pytest.raises(InvalidArgument, match="one by one"):
        Queue.objects.bulk_create([Queue(name="a"), Queue(name="b")])

    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [
        ("partition_interval", dt.timedelta(days=1), "pgqueue_partition"),
        ("unlogged", True, "Drop the queue"),
    ],
)
def test_rows_are_not_updated_to_settings_that_the_tables_lack(orders, setting, value, advice):
    with pytest.raises(InvalidArgument, match=f"cannot change {setting}.*{advice}"):
        Queue.objects.filter(name="orders").update(**{setting: value, "limit": 5})

    assert Queue.objects.get().limit is None


def test_a_bad_name_is_a_validation_error_in_forms_and_refused_in_save(db):
    with pytest.raises(ValidationError, match="1 to 63"):
        Queue(name="a b").full_clean()
    with pytest.raises(InvalidQueueName):
        Queue(name="a b").save()
    QueueFactory(name="orders")
    with pytest.raises(ValidationError, match="pgqueue_queue_name_unique"):
        Queue(name="ORDERS").full_clean()


def test_a_queue_prints_as_its_name():
    assert str(Queue(name="orders")) == "orders"


def test_a_database_that_is_not_configured_is_named(db):
    with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
        Message.objects.using("nowhere").send("orders", 1)


def test_a_queue_can_stand_for_its_name(orders):
    queue = Queue.objects.get()

    pk = Message.objects.send(queue, 1)

    assert Message.objects.read(queue)[0].id == pk
    assert Message.objects.drop_queue(queue)


# The cache of queues


def test_a_committed_queue_is_looked_up_once(committed_orders, django_assert_num_queries):
    committed_orders.send(1)

    with django_assert_num_queries(3):
        committed_orders.send(2)
        committed_orders.read()
        committed_orders.peek()


def test_a_cached_queue_is_looked_up_again_after_cache_seconds(committed_orders, settings, actor):
    settings.PGQUEUE = {"CACHE_SECONDS": 0}
    committed_orders.send(1)
    run_sql("UPDATE pgqueue_queue SET visibility_timeout = 99")

    [message] = committed_orders.read()

    assert (message.vt - message.first_read_at).total_seconds() == 99


OPERATIONS: list[tuple[Any, ...]] = [
    ("send", "orders", 1),
    ("send_batch", "orders", [1, 2]),
    ("send_batch", "orders", [1] * 600),
    ("read", "orders"),
    ("peek", "orders"),
    ("pop", "orders"),
    ("purge", "orders"),
    ("metrics", "orders"),
    ("set_vt", "orders", 1, 0),
    ("archive", "orders", 1),
    ("delete", "orders", 1),
]


@pytest.mark.parametrize(
    "operation",
    [
        *OPERATIONS,
        ("read_with_poll", "orders"),
        ("maintain", "orders"),
        ("repartition", "orders", dt.timedelta(days=1)),
    ],
    ids=lambda operation: operation[0],
)
def test_an_operation_on_an_unknown_queue_says_so(db, operation):
    with pytest.raises(QueueNotFound, match="Create it first"):
        call(*operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation[0])
def test_a_queue_that_another_process_dropped_and_made_again_is_found_again(
    committed_orders, actor, operation
):
    committed_orders.send("remembers the queue")
    actor.do(call, "drop_queue", "orders")
    actor.do(call, "create_queue", "orders", unlogged=True)

    call(*operation)

    sent = operation[0].startswith("send")
    assert Message.objects.metrics("orders").length == (
        (len(operation[2]) if isinstance(operation[2], list) else 1) if sent else 0
    )


@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_a_queue_that_another_process_dropped_is_not_found(committed_orders, actor, count, atomic):
    committed_orders.send("remembers the queue")
    actor.do(call, "drop_queue", "orders")

    with transaction.atomic() if atomic else nullcontext(), pytest.raises(QueueNotFound):
        send(count)

    assert Message.objects.count() == 0


def send(count: int) -> None:
    if count == 1:
        Message.objects.send("orders", 1)
    else:
        Message.objects.send_batch("orders", [1] * count)


def test_a_dropped_queue_is_not_found_without_autocommit_either(committed_orders, actor):
    committed_orders.send("remembers the queue")
    actor.do(call, "drop_queue", "orders")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(QueueNotFound):
            committed_orders.send(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_a_rolled_back_create_is_not_remembered(committed):
    with rolled_back():
        Message.objects.create_queue("orders")
        Message.objects.send("orders", 1)

    with pytest.raises(QueueNotFound):
        Message.objects.send("orders", 1)
    Message.objects.create_queue("orders", unlogged=True)
    Message.objects.send("orders", 1)
    assert Message.objects.metrics("orders").length == 1


def test_a_create_rolled_back_without_autocommit_is_not_remembered(committed):
    transaction.set_autocommit(False)
    try:
        Message.objects.create_queue("orders")
        Message.objects.send("orders", 1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert Queue.objects._remembered == {}
    with pytest.raises(QueueNotFound):
        Message.objects.send("orders", 1)


def test_a_queue_that_is_not_committed_yet_is_not_found_by_others(committed, actor):
    actor.do(begin)
    actor.do(call, "create_queue", "orders")

    with pytest.raises(QueueNotFound):
        Message.objects.send("orders", 1)

    actor.do(commit)
    assert Message.objects.send("orders", 1)


def test_a_rolled_back_drop_leaves_the_queue_to_be_found(committed_orders):
    pk = committed_orders.send(1)

    with rolled_back():
        committed_orders.drop()

    assert [m.id for m in committed_orders.read()] == [pk]


def flush() -> None:
    """Flush the database, as TransactionTestCase does after each test."""
    call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)


@pytest.mark.parametrize("count", [1, 2, 600])
def test_a_flush_leaves_no_ghost_of_a_queue(committed, count):
    Message.objects.create_queue("orders", unlogged=True)
    Message.objects.send("orders", "remembers the queue")
    Message.objects.send("orders", "later", delay=60)
    Message.objects.archive("orders", Message.objects.send("orders", 2))

    flush()

    with pytest.raises(QueueNotFound):
        send(count)
    assert Message.objects.count() == LiveMessage.objects.count() == 0
    leftovers = [
        run_sql(f"SELECT count(*) FROM pgqueue_{table}")[0][0]
        for table in ("ready", "deferred", "unlogged", "archive")
    ]
    assert leftovers == [0] * 4


def test_after_a_flush_queues_are_made_anew_even_with_the_same_id(committed):
    old = Message.objects.create_queue("orders", partition_interval=dt.timedelta(days=1))
    flush()
    run_sql("SELECT setval(pg_get_serial_sequence('pgqueue_queue', 'id'), %s, false)", [old.pk])

    new = Message.objects.create_queue("orders")

    assert new.pk == old.pk
    pk = Message.objects.send("orders", 1)
    assert Message.objects.read("orders")[0].id == pk
