"""The output of dumpdata can be loaded, into an empty database and into the same one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import TestCase

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, Queue

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture
def dump(committed: None, tmp_path: Path) -> Path:
    """A fixture file with queues of each kind and messages in each state."""
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead", max_deliveries=9)
    Message.objects.create_queue("fast", unlogged=True)
    queue("fast").group("customer-9").limit(5)
    Message.objects.create_queue("clicks", partition_interval=dt.timedelta(days=1))
    Message.objects.bind("order.#", "orders")
    for name in ("orders", "fast", "clicks"):
        fill(queue(name))
    path = tmp_path / "dump.json"
    call_command("dumpdata", "django_pgqueue", output=str(path), verbosity=0)
    return path


def fill(orders: BoundQueue) -> None:
    orders.send_batch(["archived", "leased", "ready"])
    orders.archive(orders.read())
    orders.read()
    orders.send("delayed", delay=600)
    orders.send_batch(["first", "second"], group="customer-7")
    orders.send_batch([f"batch {number}" for number in range(20)])


def empty() -> None:
    Queue.objects.update(dead_letter_queue=None)
    Queue.objects.all().delete()


def everything() -> list[tuple[Any, ...]]:
    """Every message, with its time in milliseconds as in JSON."""
    return [
        (message.pk, message.body, message.enqueued_at.isoformat(timespec="milliseconds"))
        for message in Message.objects.order_by("pk")
    ]


def load(path: Path) -> None:
    call_command("loaddata", str(path), verbosity=0)


@pytest.mark.parametrize("name", ["orders", "fast", "clicks"])
def test_messages_are_as_they_were_sent(dump, name):
    sent = everything()
    empty()

    load(dump)

    assert everything() == sent
    orders = queue(name)
    assert ArchivedMessage.objects.filter(queue__name=name).count() == 1
    assert orders.metrics().delayed == 1
    bodies = [message.body for message in orders.read(qty=100)]
    assert bodies[:3] == ["leased", "ready", "first"]
    assert len(bodies) == 23


def test_queues_bindings_and_limits_of_groups_are_as_they_were(dump):
    empty()

    load(dump)

    orders = Queue.objects.get(name="orders")
    assert orders.max_deliveries == 9
    assert orders.dead_letter_queue == Queue.objects.get(name="dead")
    assert Message.objects.test_routing("order.paid") == {"orders": ["order.#"]}
    own = queue("fast").group("customer-9").settings()
    assert own is not None
    assert own.limit == 5


def test_new_messages_get_new_ids(dump):
    highest = Message.objects.order_by("pk").last()
    empty()

    load(dump)

    assert highest
    assert queue("orders").send("new") > highest.pk
    assert Message.objects.create_queue("more").pk > Queue.objects.get(name="clicks").pk


def test_loading_twice_changes_nothing(dump):
    empty()
    load(dump)
    before = LiveMessage.objects.count(), ArchivedMessage.objects.count()

    load(dump)

    assert (LiveMessage.objects.count(), ArchivedMessage.objects.count()) == before


def test_loading_existing_messages_leaves_them_readable(dump):
    load(dump)

    bodies = [message.body for message in queue("orders").read(qty=100)]

    assert bodies[0] == "ready"
    assert len(bodies) == 22
    assert ArchivedMessage.objects.filter(queue__name="orders").get().read_ct == 1


def test_the_archive_may_come_first(dump, tmp_path):
    empty()
    queues = tmp_path / "queues.json"
    archive = tmp_path / "archive.json"
    load(dump)
    call_command("dumpdata", "django_pgqueue.queue", output=str(queues), verbosity=0)
    call_command("dumpdata", "django_pgqueue.archivedmessage", output=str(archive), verbosity=0)
    empty()

    load(queues)
    load(archive)
    load(dump)

    assert queue("orders").metrics().length == 25


# Into another database, where keys differ


def drifted() -> None:
    """Make the queues of the dump again, with other keys."""
    empty()
    for name in ("clicks", "dead", "fast", "orders"):
        Message.objects.create_queue(name)


def keys() -> dict[str, int]:
    return dict(Queue.objects.values_list("name", "pk"))


def test_a_queue_that_exists_with_another_key_is_refused(dump):
    drifted()
    before = keys()

    with pytest.raises(InvalidArgument, match=r"has the key \d+, not \d+.*--natural-primary"):
        load(dump)

    assert keys() == before


def test_a_queue_with_the_key_of_another_queue_is_refused(dump):
    number = Queue.objects.get(name="dead").pk
    empty()
    Queue(pk=number, name="mails").save()

    with pytest.raises(InvalidArgument, match=f"the key {number} is that of queue 'mails'"):
        load(dump)

    assert keys() == {"mails": number}


def test_a_fixture_that_names_queues_loads_into_a_database_with_other_keys(dump, tmp_path):
    path, sent = tmp_path / "named.json", everything()
    natural = {"use_natural_foreign_keys": True, "use_natural_primary_keys": True}
    call_command("dumpdata", "django_pgqueue", output=str(path), verbosity=0, **natural)
    drifted()
    before = keys()

    load(path)

    assert (keys(), everything()) == (before, sent)
    assert Queue.objects.get(name="orders").dead_letter_queue == Queue.objects.get(name="dead")
    assert Message.objects.test_routing("order.paid") == {"orders": ["order.#"]}
    for name in ("orders", "fast", "clicks"):
        bodies = [message.body for message in queue(name).read(qty=100)]
        assert (bodies[0], len(bodies)) == ("leased", 23)
        assert ArchivedMessage.objects.filter(queue__name=name).count() == 1


@pytest.mark.parametrize("moved", [False, True], ids=["other", "moved"])
def test_a_message_with_the_key_of_another_message_is_refused(dump, tmp_path, moved):
    pk = Message.objects.order_by("pk").values_list("pk", flat=True)[0]
    path = tmp_path / "messages.json"
    call_command("dumpdata", "django_pgqueue.message", output=str(path), verbosity=0)
    Message.objects.filter(pk=pk).delete()
    queues = {name: Queue.objects.get(name=name) for name in ("orders", "dead")}
    Message.objects.create(pk=pk, queue=queues["dead" if moved else "orders"], body="another")

    with pytest.raises(InvalidArgument, match=f"message {pk} is another one"):
        load(path)

    assert Message.objects.get(pk=pk).body == "another"


class WithFixtures(TestCase):
    """Fixtures loaded in a TestCase's transaction."""

    fixtures: list[Any] = [str(Path(__file__).parent / "queues.json")]

    def test_queues_of_a_fixture_work(self):
        assert queue("mails").send(1)
        assert len(queue("mails").read()) == 1
