"""Several databases: which one an operation, a model or a migration uses."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import router
from django.db.models import Model
from django.test import RequestFactory

from django_pgqueue import queue
from django_pgqueue.errors import QueueInUse, QueueNotFound
from django_pgqueue.models import (
    ArchivedMessage,
    BoundQueue,
    BulkAction,
    LiveMessage,
    Message,
    Queue,
    Schedule,
)
from django_pgqueue.queues.bulk import Kind

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


# A replica


class ReplicaRouter:
    """Sends reads to a replica, whatever the hints say."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: type[Model], **hints: Any) -> str:
        return "default"

    def allow_relation(self, first: Model, second: Model, **hints: Any) -> bool:
        return True


@pytest.fixture
def replica(settings: Any) -> None:
    """Makes the second database a replica that never catches up: it stays empty."""
    settings.DATABASE_ROUTERS = [ReplicaRouter()]


@pytest.fixture
def mails(replica: None) -> BoundQueue:
    """A queue with a dead-letter queue."""
    Message.objects.create_queue("dead")
    Message.objects.create_queue("mails", dead_letter_queue="dead")
    return queue("mails")


def test_a_queue_that_was_just_made_is_found(mails, capsys):
    call_command("pgqueue_create", "orders", dead_letter_queue="dead")

    assert "Made queue 'orders'" in capsys.readouterr().out
    assert Queue.objects.get(name="orders").dead_letter_queue.name == "dead"
    assert [found.name for found in Queue.objects.get(name="dead").sources.order_by("name")] == [
        "mails",
        "orders",
    ]


def test_a_dead_letter_queue_in_use_is_not_dropped(mails):
    with pytest.raises(QueueInUse, match="mails"):
        Message.objects.drop_queue("dead")
    with pytest.raises(CommandError, match="mails"):
        call_command("pgqueue_drop", "dead", no_input=True)

    Message.objects.drop_queue("mails")
    assert Message.objects.drop_queue("dead")


def test_a_setting_is_changed_where_it_is(mails):
    found = Queue.objects.get(name="mails")
    found.paused = True
    found.save()
    Queue.objects.filter(name="mails").update(limit=5)
    found.refresh_from_db()

    assert (found.alias, found.paused, found.limit) == ("default", True, 5)


@pytest.mark.parametrize(
    "act",
    [
        lambda mails: mails.group("g").limit(2),
        lambda mails: mails.group("g").settings(),
        lambda mails: Message.objects.bind("a.#", "mails"),
        lambda mails: Message.objects.test_routing("a.b"),
        lambda mails: Message.objects.publish("a.b", 1),
        lambda mails: Message.objects.list_bindings("mails")[0].queue.name,
        lambda mails: Message.objects.unbind("a.#", "mails"),
        lambda mails: Message.objects.metrics_all(),
        lambda mails: mails.peek(),
        lambda mails: mails.redrive(),
    ],
)
def test_operations_read_what_they_write(mails, act):
    Message.objects.bind("a.#", "mails")
    sent = mails.send(1)

    act(mails)

    assert [message.id for message in mails.read(in_transaction=True)] == [sent]
    assert not Queue.objects.using("other").exists()


def test_schedules_and_bulk_actions_are_written_where_they_are_read(mails):
    made = Schedule.objects.create(
        name="nightly", queue=Queue.objects.get(name="mails"), interval=dt.timedelta(days=1)
    )
    found = Schedule.objects.get()
    found.paused = True
    found.save()
    action = BulkAction.objects.begin(found.queue, Kind.DELETE, [made.run()], {})

    BulkAction.objects.drive(using="default")

    assert mails.metrics().length == 0
    assert BulkAction.objects.get().state == BulkAction.DONE
    assert BulkAction.objects.get().queue == found.queue
    assert action.queue_name == "mails"


@pytest.mark.parametrize(
    "command",
    [
        ("pgqueue_queues",),
        ("pgqueue_health",),
        ("pgqueue_peek", "mails"),
        ("pgqueue_send", "mails", "5"),
        ("pgqueue_redrive", "mails"),
    ],
)
def test_commands_find_the_queue(mails, command, capsys):
    with suppress(SystemExit):  # pgqueue_health exits with 1 if it has alerts
        call_command(*command)

    assert "mails" in capsys.readouterr().out


def test_the_admin_changes_what_it_shows(mails, django_user_model):
    admin = django_user_model(username="admin", is_superuser=True)
    found = Queue.objects.get(name="mails")
    request = RequestFactory().get("/")
    request.user = admin
    owner = site.get_model_admin(Queue)

    [shown] = owner.get_queryset(request).filter(pk=found.pk)
    shown.paused = True
    owner.save_model(request, shown, None, True)

    assert Queue.objects.using("default").get(pk=found.pk).paused


def test_a_replica_is_read_on_request(mails):
    assert list(Queue.objects.using("other")) == []
    assert list(Message.objects.filter(queue_id=1)) == []
