"""Where messages stand: every page, figure and command reports the same place of a message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.expressions import RawSQL
from django.test import Client, RequestFactory
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from django_pgqueue.admin.places import LIVE, Place
from django_pgqueue.engine.read import positions, reading
from django_pgqueue.management.diagnosis import Limits, examine
from django_pgqueue.models import BoundQueue, LiveMessage, Message, Process, Queue
from django_pgqueue.prometheus import views
from tests.admin.conftest import ids as listed_ids
from tests.admin.conftest import page, plain, rows, shown
from tests.leasing import lease
from tests.management.calling import call_json

READY, DUE, WAITING, IN_FLIGHT, DELAYED = LIVE
READABLE = (READY, DUE)

#: By place: the possible states in pgqueue_live, and whether vt is in the future.
STATES = {
    READY: {("PENDING", False)},
    DUE: {("PROCESSING", False), ("SCHEDULED", False), ("RETRYABLE", False)},
    WAITING: {("PENDING", False)},
    IN_FLIGHT: {("PROCESSING", True)},
    DELAYED: {("SCHEDULED", True), ("RETRYABLE", True)},
}


@pytest.fixture
def dead() -> int:
    """The id of a deleted process."""
    process = Process.objects.register(["orders"], version="1", using="default")
    pk: int = process.pk
    process.delete()
    return pk


@pytest.fixture
def check(operator: Client) -> Callable[[dict[int, Place]], None]:
    def check_all(standing: dict[int, Place]) -> None:
        """Check every page, figure and command; ``standing`` maps each message of orders to its
        place.
        """
        number = Counter(standing.values())
        counts = {place.value: number[place] for place in LIVE}
        readable = {pk for pk, place in standing.items() if place in READABLE}
        pk = Queue.objects.get().pk

        # Counts
        for metrics in (Message.objects.metrics("orders"), *Message.objects.metrics_all()):
            told = {**metrics.as_dict(), "due": metrics.visible - metrics.ready}
            assert told | counts == told
            assert (metrics.length, metrics.visible) == (len(standing), len(readable))
            assert metrics.exact
        [overview] = operator.get(reverse("admin:django_pgqueue_overview_json")).json()["queues"]
        assert overview | counts == overview
        assert (overview["oldest_readable_seconds"] is not None) == bool(readable)
        [command] = call_json("pgqueue_queues")
        assert (command["ready"], command["visible"]) == (number[READY], len(readable))
        assert (command["in_flight"], command["delayed"]) == (number[IN_FLIGHT], number[DELAYED])
        scraped = scrape()
        assert scraped.pop("visible") == len(readable)
        assert scraped == {name: counts[name] for name in scraped}
        found = {each.check: each.values for each in examine("default", Limits())}
        assert found["consumers"].get("visible", 0) == len(readable)
        assert found["leases"].get("leases", 0) == number[IN_FLIGHT]

        # Messages
        assert {message.id for message in BoundQueue("orders").peek(qty=None)} == readable
        assert {each["id"] for each in call_json("pgqueue_peek", "orders", "--qty", 50)} == readable
        later = RawSQL("vt > statement_timestamp()", [])
        live = LiveMessage.objects.annotate(later=later)
        states = {each.pk: (each.state, each.later) for each in live}
        listed = {int(row["id"]): row["state"] for row in rows(operator, "message")}
        for place in LIVE:
            ids = {message for message, stands in standing.items() if stands is place}
            assert set(listed_ids(operator, state=place.value, queue=pk)) == ids, place
            assert {states[each] for each in ids} <= STATES[place], place
            for each in ids:
                assert listed[each] == place.label
                assert shown(operator, each).state == place.label
        assert set(states) == set(standing)

    return check_all


def samples() -> list[Any]:
    text = views.metrics(RequestFactory().get("/metrics/queues")).content.decode()
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def scrape() -> dict[str, float]:
    every = samples()
    told = {s.labels["state"]: s.value for s in every if s.name == "pgqueue_messages"}
    [visible] = [s.value for s in every if s.name == "pgqueue_visible_messages"]
    return {**told, "visible": visible}


def test_a_message_stands_in_the_same_place_wherever_one_asks(orders, check, dead):
    check({})
    pk = orders.send("it")
    check({pk: READY})
    lease("orders", process_id=dead)
    check({pk: IN_FLIGHT})
    orders.set_vt(pk, 0)
    check({pk: DUE})
    [message] = lease("orders", process_id=dead)
    check({pk: IN_FLIGHT})
    message.nack(60)
    check({pk: DELAYED})
    orders.set_vt(pk, 0)
    check({pk: DUE})
    orders.archive(pk)
    check({})


def test_a_message_of_a_group_stands_in_the_same_place_wherever_one_asks(orders, check, dead):
    head, pk = orders.send_batch([1, 2], group="g")
    check({head: READY, pk: WAITING})  # the group has no head yet
    orders.set_vt(head, 60)
    check({head: DELAYED, pk: WAITING})
    orders.set_vt(head, 0)
    check({head: READY, pk: WAITING})
    lease("orders", process_id=dead)
    check({head: IN_FLIGHT, pk: WAITING})
    orders.archive(head)
    check({pk: READY})
    lease("orders", process_id=dead)
    check({pk: IN_FLIGHT})
    orders.set_vt(pk, 0)
    check({pk: DUE})


def test_messages_of_a_batch_stand_in_the_same_place_wherever_one_asks(orders, check, dead, sql):
    ids = orders.send_batch(list(range(20)))
    later = orders.send("later", delay=60)
    values = {
        "vt": "60 seconds",
        "qty": 20,
        "process_id": dead,
        **positions._START,
    }
    opened = Queue.objects.get().opened
    opened.run("read/read_ready", values, **reading.BATCHED)
    check({**dict.fromkeys(ids, IN_FLIGHT), later: DELAYED})
    assert len(sql("UPDATE pgqueue_lease SET vt = statement_timestamp() RETURNING head")) == 1
    check({**dict.fromkeys(ids, DUE), later: DELAYED})


#: The words of the admin's list, by the reason that why() tells.
WORDS = {
    "scheduled": "scheduled",
    "retry": "to be tried again",
    "group": "behind another message of its group",
    "group_limit": "limit of its group",
    "group_rate": "rate of its group",
    "group_paused": "its group is paused",
    "limit": "limit of the queue",
    "rate": "rate of the queue",
    "queue_paused": "the queue is paused",
}


#: The words of the queue's page for one message and for several, by the same reason.
COUNTED = {
    "scheduled": ("is scheduled", "are scheduled"),
    "retry": ("is to be tried again", "are to be tried again"),
    "group": (
        "waits behind another message of its group",
        "wait behind another message of their group",
    ),
    "group_limit": ("waits for its group's limit", "wait for their group's limit"),
    "group_rate": ("waits for its group's rate", "wait for their group's rate"),
    "group_paused": ("is in a paused group", "are in paused groups"),
    "limit": ("waits for the queue's limit", "wait for the queue's limit"),
    "rate": ("waits for the queue's rate", "wait for the queue's rate"),
    "queue_paused": ("waits, since the queue is paused", "wait, since the queue is paused"),
}


@pytest.fixture
def tell(operator: Client) -> Callable[[dict[int, str]], None]:
    def tell_all(reasons: dict[int, str]) -> None:
        """Check that every page, figure and command tells these reasons, and no others."""
        orders, numbers = BoundQueue("orders"), Counter(reasons.values())
        live = LiveMessage.objects.values_list("pk", flat=True)
        why = {pk: wait.reason for pk in live if (wait := orders.why(pk)) is not None}
        assert {pk: reason for pk, reason in why.items() if reason} == reasons
        peeked = orders.peek(qty=None, blocked=True)
        assert {message.id: message.wait.reason for message in peeked} == reasons
        assert [message.wait for message in peeked] == [orders.why(m.id) for m in peeked]
        commanded = call_json("pgqueue_peek", "orders", "--blocked", "--qty", 50)
        assert {each["id"]: each["reason"] for each in commanded} == reasons
        for metrics in (orders.metrics(), *Message.objects.metrics_all()):
            assert metrics.blocked == numbers
            assert metrics.exact
        [command] = call_json("pgqueue_queues")
        assert command["blocked"] == numbers
        scraped = [each for each in samples() if each.name == "pgqueue_blocked_messages"]
        assert {each.labels["reason"]: each.value for each in scraped} == numbers
        listed = {int(each["id"]): each.get("reason", "") for each in rows(operator, "message")}
        assert {pk: text for pk, text in listed.items() if text} == {
            pk: WORDS[reason] for pk, reason in reasons.items()
        }
        text = page(operator, "queue", "overview", Queue.objects.get().pk)
        told = text.partition('<p class="help blocked">')[2].partition("</p>")[0]
        parts = sorted(filter(None, plain(told).partition(": ")[2].split("; ")))
        expected = sorted(f"{n} {COUNTED[reason][n > 1]}" for reason, n in numbers.items())
        assert len(parts) == len(expected)
        for part, start in zip(parts, expected, strict=True):
            # Behind it, a limit or rate of the queue.
            assert re.fullmatch(rf"{start}(, \d+(/\w+)?)?", part)

    return tell_all


def test_a_message_waits_for_the_same_reason_wherever_one_asks(orders, tell):
    pk = orders.send("it", delay=60)
    tell({pk: "scheduled"})
    orders.set_vt(pk, 0)
    tell({})
    Queue.objects.update(paused=True)
    tell({pk: "queue_paused"})
    Queue.objects.update(paused=False)
    [message] = lease("orders")
    tell({})
    message.nack(60)
    tell({pk: "retry"})


@pytest.mark.parametrize(("limits", "reason"), [({"limit": 1}, "limit"), ({"rate": "1/h"}, "rate")])
def test_a_message_waits_for_its_queue_wherever_one_asks(orders, tell, limits, reason):
    Queue.objects.update(**limits)
    first, pk, due = orders.send_batch([1, 2, 3])
    tell({})
    orders.read()
    orders.set_vt(due, 0)
    assert orders.why(first).reason is None
    tell({pk: reason, due: reason})
    Queue.objects.update(paused=True)
    tell({pk: "queue_paused", due: "queue_paused"})


def test_a_message_waits_for_its_group_wherever_one_asks(orders, tell):
    head, pk = orders.send_batch([1, 2], group="g")
    tell({pk: "group"})
    [message] = lease("orders")
    tell({pk: "group"})
    message.nack(60)
    tell({head: "retry", pk: "group"})
    orders.archive(head)
    tell({})
    orders.group("g").pause()
    tell({pk: "group_paused"})
    orders.group("g").reset()
    Queue.objects.update(group_limit=2)
    more = orders.send_batch([3, 4], group="g")
    orders.read(qty=5)
    tell({more[1]: "group_limit"})
    Queue.objects.update(group_limit=None, group_rate="1/h")
    orders.archive([pk, more[0]])
    orders.read(qty=5)
    tell({more[1]: "group_rate"})
