"""Publish sends one copy to each queue bound to the key."""

from __future__ import annotations

import datetime as dt

import pytest

from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import Binding, BoundQueue, Message
from tests.actors import call
from tests.conftest import rolled_back
from tests.waiting import until

objects = Message.objects


@pytest.fixture
def queues(db: None) -> dict[str, BoundQueue]:
    names = ("audit", "builds", "mails")
    for name in names:
        objects.create_queue(name)
    return {name: BoundQueue(name) for name in names}


def test_each_bound_queue_gets_one_copy(queues):
    objects.bind("github.push.#", "builds")
    objects.bind("github.*.main", "builds")
    objects.bind("github.#", "audit")
    objects.bind("gitlab.#", "mails")

    sent = objects.publish("github.push.main", {"n": 1}, headers={"h": 1})

    assert list(sent) == ["audit", "builds"]
    for name, pk in sent.items():
        [message] = queues[name].read(qty=5)
        assert (message.id, message.body) == (pk, {"n": 1})
        assert message.headers == {"h": 1, "x-routing-key": "github.push.main"}
    assert queues["mails"].read() == []


def test_where_nothing_is_bound_nothing_is_sent(queues):
    assert objects.publish("nobody.listens", 1) == {}
    assert objects.publish_batch("nobody.listens", [1, 2]) == {}


def test_binding_twice_is_binding_once(queues):
    assert objects.bind("a.#", "builds") is True
    assert objects.bind("a.#", "BUILDS") is False

    assert Binding.objects.count() == 1
    assert objects.unbind("a.#", "builds") is True
    assert objects.unbind("a.#", "builds") is False


def test_a_batch_goes_to_each_bound_queue(queues):
    objects.bind("a.b", "builds")
    objects.bind("a.*", "audit")

    sent = objects.publish_batch("a.b", [1, 2], headers=[{"h": 1}, None], group="g", delay=0)

    assert {name: len(ids) for name, ids in sent.items()} == {"audit": 2, "builds": 2}
    assert [m.body for m in queues["audit"].read_grouped(qty=5)] == [1, 2]


def test_options_go_to_every_copy(queues):
    objects.bind("#", "builds")

    first = objects.publish("a", 1, delay=60, priority=3, group="g", unique="k")

    assert objects.publish("a", 1, unique="k") == first
    message = Message.objects.get(pk=first["builds"])
    assert (message.priority, message.group_key) == (3, "g")
    assert message.scheduled_at is not None


def test_routing_and_bindings_can_be_looked_at(queues):
    objects.bind("a.#", "builds")
    objects.bind("a.*", "builds")
    objects.bind("#", "audit")

    assert objects.test_routing("a.b") == {"audit": ["#"], "builds": ["a.#", "a.*"]}
    assert [(b.pattern, b.queue.name) for b in objects.list_bindings()] == [
        ("#", "audit"),
        ("a.#", "builds"),
        ("a.*", "builds"),
    ]
    assert [b.pattern for b in objects.list_bindings("audit")] == ["#"]


def test_publishing_is_all_or_nothing(queues):
    objects.bind("#", "audit")
    objects.bind("#", "builds")

    with rolled_back():
        objects.publish("a", 1)

    assert queues["audit"].metrics().length == queues["builds"].metrics().length == 0


def test_a_change_by_another_process_counts_at_the_next_publish(committed, actor):
    objects.create_queue("audit")
    objects.create_queue("builds")
    objects.bind("a.#", "audit")
    assert list(objects.publish("a.b", 1)) == ["audit"]

    actor.do(call, "bind", "a.*", "builds")
    assert list(objects.publish("a.b", 1)) == ["audit", "builds"]

    actor.do(call, "unbind", "a.#", "audit")
    assert list(objects.publish("a.b", 1)) == ["builds"]


def test_a_change_of_a_queues_settings_applies_to_published_messages(committed, settings):
    settings.PGQUEUE = {"CACHE_SECONDS": 0}
    queue = objects.create_queue("builds")
    objects.bind("#", "builds")
    first = objects.publish("a", 1, unique="long")
    again = objects.publish("a", 1, unique="long")

    queue.unique_window = dt.timedelta(seconds=1)
    queue.save()
    second = objects.publish("a", 1, unique="short")

    assert again == first
    until(
        lambda: objects.publish_batch("a", [1], unique=["short"]) != {"builds": [second["builds"]]}
    )


def test_a_dropped_queue_takes_its_bindings_along(queues):
    objects.bind("#", "builds")

    objects.drop_queue("builds")

    assert objects.publish("a", 1) == {}


def test_what_cannot_be_bound_or_published_is_refused(queues):
    with pytest.raises(QueueNotFound):
        objects.bind("#", "nowhere")
    with pytest.raises(InvalidArgument):
        objects.bind("a*", "builds")
    with pytest.raises(InvalidArgument):
        objects.publish("a.*", 1)
