"""Queues made by a project's own migrations."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.db.migrations.state import ProjectState

from django_pgqueue.errors import InvalidQueueName
from django_pgqueue.maintenance import bounds
from django_pgqueue.models import LiveMessage, Message, Queue
from django_pgqueue.operations import CreateQueue
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def state():
    from django.apps import apps

    return ProjectState.from_apps(apps)


def forwards(operation, state):
    with connection.schema_editor(atomic=False) as editor:
        operation.database_forwards("shop", editor, state, state)


def backwards(operation, state):
    with connection.schema_editor(atomic=False) as editor:
        operation.database_backwards("shop", editor, state, state)


def test_a_migration_makes_a_queue_that_works(state):
    forwards(CreateQueue("orders", visibility_timeout=77, max_deliveries=3), state)

    Message.objects.send("orders", {"order": 7})

    assert Queue.objects.get(name="orders").visibility_timeout == 77
    assert [message.body for message in Message.objects.read("orders")] == [{"order": 7}]


def test_a_migration_leaves_a_queue_that_exists_as_it_is(state):
    Message.objects.create_queue("Orders", visibility_timeout=11)

    forwards(CreateQueue("orders", visibility_timeout=77), state)

    assert [queue.visibility_timeout for queue in Message.objects.list_queues()] == [11]


def test_a_migration_names_the_dead_letter_queue(state):
    forwards(CreateQueue("dead"), state)
    forwards(CreateQueue("orders", dead_letter_queue="dead"), state)

    assert Queue.objects.get(name="orders").dead_letter_queue.name == "dead"


def test_backwards_drops_the_queue_and_its_messages(state):
    operation = CreateQueue("orders")
    forwards(operation, state)
    Message.objects.send_batch("orders", [1, 2])

    backwards(operation, state)

    assert not Queue.objects.filter(name="orders").exists()
    assert LiveMessage.objects.count() == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relname ~ 'pgqueue_.*_q[0-9]+'")
        assert cursor.fetchone() == (0,)
    backwards(operation, state)


def test_backwards_drops_what_was_begun_with_the_queue_too(state):
    operation = CreateQueue("orders")
    forwards(operation, state)
    for number in range(3):
        Message.objects.send("orders", number, group="g", dedup_key=str(number))
    until = dt.datetime(2200, 1, 1, tzinfo=dt.timezone.utc)
    with connection.cursor() as cursor:
        bounds.add_bound(cursor, Queue.objects.get().pk, "pgqueue_message", until)

    backwards(operation, state)

    assert LiveMessage.objects.count() == 0
    assert run_sql("SELECT relname FROM pg_class WHERE relname ~ 'pgqueue_.*_q[0-9]+'") == []
    assert run_sql("SELECT proname FROM pg_proc WHERE proname ~ 'pgqueue_.*_q[0-9]+'") == []
    for table in ("group", "dedup"):
        assert run_sql(f"SELECT count(*) FROM pgqueue_{table}") == [(0,)]


def test_a_bad_name_is_refused_when_the_migration_is_loaded():
    with pytest.raises(InvalidQueueName):
        CreateQueue("or ders")


def test_the_operation_names_its_arguments_for_a_squashed_migration():
    operation = CreateQueue("orders", notify=False)

    assert operation.deconstruct() == ("CreateQueue", ["orders"], {"notify": False})
    assert operation.describe() == "Create queue orders"
