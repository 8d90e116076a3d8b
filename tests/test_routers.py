"""Several databases: which one an operation, a model or a migration uses."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import router

from django_pgqueue import queue
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import ArchivedMessage, LiveMessage, Message, Queue

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture
def in_other(settings: Any) -> None:
    """Puts the queues into the second database."""
    settings.PGQUEUE = {"DATABASE": "other"}
    settings.DATABASE_ROUTERS = ["django_pgqueue.routers.QueueRouter"]


@pytest.fixture
def one_in_each(db: None) -> None:
    for alias in ("default", "other"):
        Message.objects.using(alias).create_queue("orders")


def lengths() -> dict[str, int]:
    return {
        alias: Message.objects.using(alias).metrics("orders").length
        for alias in ("default", "other")
    }


# Operations


def test_operations_work_where_the_routers_say(one_in_each):
    Message.objects.send("orders", 1)

    assert lengths() == {"default": 1, "other": 0}


def test_the_setting_beats_the_routers(one_in_each, settings):
    settings.PGQUEUE = {"DATABASE": "other"}

    Message.objects.send("orders", 1)
    queue("orders").send(2)

    assert lengths() == {"default": 0, "other": 2}


def test_what_is_bound_beats_the_setting(one_in_each, settings):
    settings.PGQUEUE = {"DATABASE": "default"}

    Message.objects.db_manager("other").send("orders", 1)
    queue("orders", using="other").send(2)
    Message.objects.send(Queue.objects.using("other").get(), 3)

    assert lengths() == {"default": 0, "other": 3}


def test_using_beats_what_is_bound(one_in_each):
    orders = Queue.objects.using("default").get()

    Message.objects.using("other").send("orders", 1)
    queue("orders", using="other").send(2)
    Message.objects.using("other").send(orders, 3)

    assert lengths() == {"default": 0, "other": 3}


def test_settling_by_a_manager_of_another_database_follows_using(one_in_each):
    message_id = Message.objects.using("other").send("orders", 1)

    done = Message.objects.using("other").archive("orders", message_id)

    assert done == [message_id]


def test_queues_are_made_listed_measured_and_dropped_where_the_setting_says(settings):
    settings.PGQUEUE = {"DATABASE": "other"}

    made = Message.objects.create_queue("orders")
    listed = Message.objects.list_queues()
    measured = Message.objects.metrics_all()

    assert made.alias == "other"
    assert listed == [made]
    assert [metrics.queue_name for metrics in measured] == ["orders"]
    assert not Queue.objects.using("default").exists()
    assert Message.objects.drop_queue(made)
    assert not Queue.objects.using("other").exists()


def test_a_new_queue_is_saved_where_the_setting_says(settings):
    settings.PGQUEUE = {"DATABASE": "other"}

    orders = Queue(name="orders")
    orders.save()

    assert orders.alias == "other"
    assert Message.objects.send("orders", 1)


def test_a_queue_is_dropped_in_its_own_database(one_in_each):
    Message.objects.drop_queue(Queue.objects.using("other").get())

    assert Queue.objects.using("default").count() == 1
    assert not Queue.objects.using("other").exists()


def test_a_queue_of_another_database_is_not_found(one_in_each):
    Message.objects.using("default").drop_queue("orders")

    with pytest.raises(QueueNotFound, match="'default'"):
        queue("orders").send(1)


# The router


def test_the_router_sends_our_models_to_the_setting_and_no_others(in_other):
    for model in (Queue, Message, ArchivedMessage, LiveMessage):
        assert router.db_for_read(model) == router.db_for_write(model) == "other"
        assert router.allow_migrate_model("other", model)
        assert not router.allow_migrate_model("default", model)
    assert router.db_for_write(User) == "default"
    assert router.allow_migrate_model("default", User)


def test_the_router_has_no_say_without_the_setting(settings):
    settings.DATABASE_ROUTERS = ["django_pgqueue.routers.QueueRouter"]

    assert router.db_for_write(Message) == "default"
    assert router.allow_migrate_model("default", Message)
    assert router.allow_migrate_model("other", Message)


def test_orm_and_operations_meet_in_one_database(in_other):
    orders = Queue.objects.create(name="orders")
    Message.objects.bulk_create([Message(queue=orders, body=1)])
    [message] = queue("orders").read()
    queue("orders").archive(message)

    [archived] = ArchivedMessage.objects.all()

    assert archived.body == 1
    assert archived.queue == orders
    assert not Queue.objects.using("default").exists()


def test_relations_are_followed_in_the_database_of_their_object(in_other, one_in_each):
    queue("orders", using="default").send(1)

    message = Message.objects.using("default").get()

    assert message.queue.alias == "default"


def test_a_dead_letter_queue_is_in_the_same_database(in_other, one_in_each):
    here = Queue.objects.using("other").get()
    there = Queue.objects.using("default").get()

    assert Queue(name="new", dead_letter_queue=here).alias == "other"
    with pytest.raises(ValueError, match="database router"):
        here.dead_letter_queue = there
