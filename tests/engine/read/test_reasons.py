"""why() and peek(blocked=True): why messages are not delivered now."""

from __future__ import annotations

import pytest
from django.utils import timezone

from django_pgqueue import queue
from django_pgqueue.engine.read import positions, reading
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import Message, Queue
from django_pgqueue.types import Wait


def blocked(orders, qty=None):
    """The reasons of the blocked messages, by id, in the order of peek."""
    found = orders.peek(qty=qty, blocked=True)
    for message in found:
        assert message.wait == orders.why(message.id)
    return {message.id: message.wait.reason for message in found}


def test_a_queue_without_anything_blocked_shows_nothing(orders):
    orders.send_batch(range(3))
    orders.read(qty=1)
    orders.send(1, group="a")  # it has no head yet

    assert orders.peek(qty=None, blocked=True) == []
    assert [message.wait for message in orders.peek(qty=None)] == [None] * 3


def test_blocked_messages_come_with_their_reasons_and_bodies(orders):
    head, second, third = orders.send_batch([1, 2, 3], group="a")
    orders.read()
    later = orders.send("later", delay=60)
    soon = orders.send("soon", delay=30)

    assert blocked(orders) == {
        second: "group",
        third: "group",
        soon: "scheduled",
        later: "scheduled",
    }
    found = orders.peek(qty=3, blocked=True)
    assert [message.body for message in found] == [2, 3, "soon"]
    assert found[0].wait == Wait("group", None)
    assert found[2].wait.until > timezone.now()
    assert head not in blocked(orders)


def test_the_first_message_of_each_group_comes_first(orders):
    for group in "ab":
        orders.send_batch([f"{group}{n}" for n in range(3)], group=group)
    orders.read(qty=2)

    found = orders.peek(qty=3, blocked=True)

    assert [message.body for message in found] == ["a1", "b1", "a2"]


def test_behind_the_first_message_of_a_group_that_was_never_read_all_wait_for_it(orders):
    first, *others = orders.send_batch(range(3), group="a")

    assert orders.why(first) == Wait(None, None)
    assert blocked(orders) == dict.fromkeys(others, "group")
    assert list(blocked(orders, qty=1)) == others[:1]
    assert orders.metrics().blocked == {"group": 2}
    [found] = orders.peek(qty=None)
    assert found.id == first


def test_messages_of_a_new_group_wait_for_its_limit(db):
    Message.objects.create_queue("orders", group_limit=2)
    orders = queue("orders")
    first, second, *others = orders.send_batch(range(5), group="a")

    assert [orders.why(each) for each in (first, second)] == [Wait(None, None)] * 2
    assert blocked(orders) == dict.fromkeys(others, "group_limit")
    assert list(blocked(orders, qty=2)) == others[:2]
    assert orders.metrics().blocked == {"group_limit": 3}


def test_behind_the_delayed_first_message_of_a_new_group_all_wait_for_it(orders):
    first = orders.send("later", group="a", delay=60)
    second = orders.send("now", group="a")

    assert blocked(orders) == {first: "scheduled", second: "group"}


def test_of_a_paused_queue_messages_come_in_the_order_of_reads(orders):
    low = orders.send("low", priority=-1)
    due = orders.send("due")
    batch = orders.send_batch(range(20))
    opened = Queue.objects.get().opened
    values = {"vt": "0 seconds", "qty": 21, "process_id": None}
    opened.run(
        "read/read_ready",
        {**values, **positions._START},
        **reading.BATCHED,
    )
    high = orders.send("high", priority=1)
    grouped = orders.send_batch(range(2), group="a")
    later = orders.send("later", delay=60)
    Queue.objects.update(paused=True)

    found = blocked(orders)

    assert list(found) == [due, *batch, high, low, *grouped, later]
    assert list(blocked(orders, qty=3)) == [due, *batch[:2]]
    assert set(found.values()) == {"queue_paused", "scheduled"}


def test_a_due_follower_waits_for_its_group(orders, sql):
    orders.send_batch(range(2), group="a")
    follower = max(message.id for message in orders.read_grouped(qty=2))
    sql(f"UPDATE pgqueue_deferred SET vt = statement_timestamp() WHERE id = {follower}")

    assert blocked(orders) == {follower: "group"}
    assert orders.metrics().blocked == {"group": 1}


def test_peek_shows_the_blocked_messages_whose_body_contains_a_condition(orders):
    orders.send_batch([{"n": n % 2} for n in range(6)], group="a")
    orders.read()
    orders.send({"n": 1}, delay=60)
    orders.send({"n": 0}, delay=60)

    found = orders.peek(qty=None, conditional={"n": 1}, blocked=True)

    assert [message.body for message in found] == [{"n": 1}] * 4
    assert orders.peek(conditional={"n": 2}, blocked=True) == []


@pytest.mark.parametrize("wrong", [{"qty": -1}, {"qty": "x"}, {"conditional": [object()]}])
def test_peek_of_blocked_messages_refuses_what_a_peek_refuses(orders, wrong):
    with pytest.raises(InvalidArgument):
        orders.peek(**wrong, blocked=True)
    with pytest.raises(InvalidArgument):
        orders.peek(**wrong)


def test_peek_of_blocked_messages_of_an_unknown_queue_says_so(db):
    with pytest.raises(QueueNotFound):
        queue("nowhere").peek(blocked=True)


@pytest.mark.parametrize("wrong", ["x", None, 1.5, True])
def test_why_refuses_what_is_no_id(orders, wrong):
    with pytest.raises(InvalidArgument):
        orders.why(wrong)
