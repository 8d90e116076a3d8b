"""Reads in the caller's transaction find what plain reads find, and hold up no other group.

Two or three sessions: a group whose row another session has locked at the wrong moment has a
recheck instead of a head.
"""

from __future__ import annotations

import pytest
from django.db import transaction

from django_pgqueue.models import BoundQueue, Message, Queue
from tests.actors import Actor, begin, call, commit, execute, rollback
from tests.conftest import run_sql
from tests.messages import bodies

HOLD = "SELECT FROM pgqueue_group WHERE group_key = %s FOR UPDATE"


@pytest.fixture
def limited(committed: None) -> BoundQueue:
    Message.objects.create_queue("orders", group_limit=2)
    return BoundQueue("orders")


def read_in_transaction(queue: BoundQueue, qty: int = 1) -> list[str]:
    """Read and archive in one transaction."""
    with transaction.atomic():
        messages = queue.read(qty=qty, in_transaction=True)
        queue.archive(messages)
    return bodies(messages)


def send_each(queue: BoundQueue, group: str, count: int) -> None:
    """Send messages one by one, so that each leaves a recheck."""
    for n in range(1, count + 1):
        queue.send(f"{group}{n}", group=group)


def leave_rechecks(group: str, count: int) -> None:
    """What ``count`` sends to the group leave, besides the messages."""
    run_sql(
        "INSERT INTO pgqueue_recheck (id, queue_id, group_key) "
        "SELECT nextval('pgqueue_message_id_seq'), %s, %s FROM generate_series(1, %s)",
        [Queue.objects.get().pk, group, count],
    )


def hold(actor: Actor, group: str) -> None:
    actor.do(begin)
    actor.do(execute, HOLD, [group])


def test_it_finds_the_message_behind_one_that_was_acked_while_the_group_was_locked(
    committed_orders, actor
):
    send_each(committed_orders, "a", 2)
    [first] = committed_orders.read()
    hold(actor, "a")
    committed_orders.archive(first)
    actor.do(rollback)

    assert read_in_transaction(committed_orders) == ["a2"]


def test_it_goes_past_the_rechecks_of_a_busy_group(committed_orders):
    send_each(committed_orders, "a", 1)
    [_first] = committed_orders.read()
    leave_rechecks("a", 2500)
    send_each(committed_orders, "b", 1)

    assert read_in_transaction(committed_orders) == ["b1"]
    assert [read_in_transaction(committed_orders) for _ in range(2)] == [[], []]
    assert run_sql("SELECT count(*) FROM pgqueue_recheck") == [(0,)]


@pytest.mark.parametrize("count", [0, 2500])
def test_it_goes_past_a_group_of_which_others_handle_all_that_the_limit_permits(
    limited, actors, count
):
    send_each(limited, "a", 3)
    for actor in actors(2):
        actor.do(begin)
        actor.do(call, "read", "orders", in_transaction=True)
    leave_rechecks("a", count)
    send_each(limited, "b", 1)

    assert read_in_transaction(limited) == ["b1"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_read_goes_past_the_rechecks_of_a_locked_group(committed_orders, actor, in_transaction):
    send_each(committed_orders, "a", 1)
    [_first] = committed_orders.read()
    leave_rechecks("a", 2500)
    send_each(committed_orders, "b", 1)
    hold(actor, "a")

    if in_transaction:
        assert read_in_transaction(committed_orders) == ["b1"]
    else:
        assert bodies(committed_orders.read()) == ["b1"]


def test_it_keeps_no_other_group_from_others(committed_orders, actors):
    for group in "abc":
        send_each(committed_orders, group, 2)

    for actor, found in zip(actors(2), ["a1", "b1"], strict=True):
        actor.do(begin)
        assert bodies(actor.do(call, "read", "orders", in_transaction=True)) == [found]

    assert read_in_transaction(committed_orders, qty=10) == ["c1"]
    assert read_in_transaction(committed_orders, qty=10) == ["c2"]


@pytest.mark.parametrize("queue", ["committed_orders", "limited"])
def test_it_does_not_keep_the_next_message_from_the_ack_of_the_first(queue, request, actor):
    orders = request.getfixturevalue(queue)
    send_each(orders, "a", 1)
    send_each(orders, "b", 1)
    heads = orders.read(qty=2)
    for group in "ab":
        send_each(orders, group, 2)
    if queue == "limited":
        heads += orders.read(qty=2)
    actor.do(begin)
    assert actor.do(call, "read", "orders", in_transaction=True) == []

    orders.archive(heads)

    assert len(orders.read(qty=10)) == 2
    actor.do(commit)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_read_waits_for_no_operator_who_takes_out_the_next(
    committed_orders, actors, in_transaction
):
    send_each(committed_orders, "a", 3)
    [first] = committed_orders.read()
    holder, operator, reader = actors(3)
    hold(holder, "a")
    committed_orders.archive(first)
    holder.do(rollback)
    operator.do(begin)
    operator.do(call, "delete", "orders", first.id + 1)

    if in_transaction:
        reader.do(begin)
    assert reader.do(call, "read", "orders", in_transaction=in_transaction) == []

    operator.do(commit)
    assert bodies(reader.do(call, "read", "orders", in_transaction=in_transaction)) == ["a3"]


def test_it_takes_nothing_away_when_it_is_rolled_back(committed_orders, actor):
    send_each(committed_orders, "a", 2)
    [first] = committed_orders.read()
    hold(actor, "a")
    committed_orders.archive(first)
    actor.do(rollback)
    actor.do(begin)
    assert bodies(actor.do(call, "read", "orders", in_transaction=True)) == ["a2"]
    assert committed_orders.read() == []
    actor.do(rollback)

    assert bodies(committed_orders.read()) == ["a2"]
