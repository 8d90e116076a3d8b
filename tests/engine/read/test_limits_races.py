"""Limits under concurrent sessions: none waits for another, and no slot is lost or used twice."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError

from django_pgqueue.models import BoundQueue, Queue
from tests.actors import Actor, begin, call, commit, execute, rollback
from tests.conftest import run_sql
from tests.messages import bodies
from tests.waiting import until

Change = Callable[..., None]

#: A FIFO group, and one with two slots: the database runs other statements for each.
fifo_or_two = pytest.mark.parametrize("slots", [None, 2], ids=["FIFO", "two slots"])


@pytest.fixture
def change(committed_orders: BoundQueue) -> Change:
    """Change the queue's limits, in every process at once."""

    def change(**values: Any) -> None:
        Queue.objects.filter(name="orders").update(**values)
        Queue.objects.forget_all()

    return change


def lock_group(actor: Actor, group: str) -> None:
    actor.do(begin)
    actor.do(execute, "SELECT FROM pgqueue_group WHERE group_key = %s FOR UPDATE", [group])


def rest_of(orders: BoundQueue) -> list[Any]:
    """Archive all that can be read, and read again, until nothing is left."""
    seen: list[Any] = []
    while messages := orders.read(qty=10):
        seen += bodies(messages)
        orders.archive(messages)
    return seen


#: Has a row for each session of this database that waits for another one.
WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)

# Groups


@pytest.mark.parametrize("first_commit", [0, 1])
@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_two_acks_of_one_group_at_once_fill_both_slots(
    committed_orders, change, actors, first_commit, behind
):
    change(group_limit=2)
    committed_orders.send_batch(range(2 + behind), group="a")
    messages = committed_orders.read(qty=10)
    ackers = actors(2)
    for acker, message in zip(ackers, messages, strict=True):
        acker.do(begin)
        assert acker.do(call, "archive", "orders", message.receipt) == [message.id]

    ackers[first_commit].do(commit)
    assert len(committed_orders.read(qty=10)) <= 1
    ackers[1 - first_commit].do(commit)

    committed_orders.read(qty=10)
    assert committed_orders.metrics().in_flight == min(behind, 2)
    assert committed_orders.read(qty=10) == []


def test_the_next_message_comes_once_the_ack_is_committed(committed_orders, change, actor):
    change(group_limit=2)
    committed_orders.send_batch(range(4), group="a")
    messages = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(call, "archive", "orders", messages[0].receipt)

    assert committed_orders.read(qty=10) == []
    actor.do(commit)

    assert bodies(committed_orders.read(qty=10)) == [2]
    assert committed_orders.read(qty=10) == []


def test_an_ack_that_is_rolled_back_frees_no_slot(committed_orders, change, actor):
    change(group_limit=2)
    committed_orders.send_batch(range(5), group="a")
    first, second = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(call, "archive", "orders", first.receipt)
    committed_orders.archive(second)

    actor.do(rollback)

    assert bodies(committed_orders.read(qty=10)) == [2]
    assert committed_orders.read(qty=10) == []
    assert committed_orders.archive(first) == [first.id]
    assert bodies(committed_orders.read(qty=10)) == [3]


@pytest.mark.parametrize("end", [commit, rollback])
def test_an_ack_beside_a_read_that_fills_slots_is_not_lost(committed_orders, change, actor, end):
    change(group_limit=2)
    committed_orders.send_batch(range(4), group="a")
    first, second = committed_orders.read(qty=10)
    committed_orders.send(4, group="a")
    actor.do(begin)
    actor.do(call, "read", "orders", qty=10, in_transaction=True)  # locks the group

    committed_orders.archive([first, second])
    actor.do(end)

    assert sorted(rest_of(committed_orders)) == [2, 3, 4]


@pytest.mark.parametrize("first_commit", [0, 1])
@fifo_or_two
def test_two_first_sends_of_a_group_are_both_found(
    committed_orders, change, actors, slots, first_commit
):
    change(group_limit=slots)
    number_of_each = slots or 1
    senders = actors(2)
    for number, sender in enumerate(senders):
        sender.do(begin)
        sender.do(call, "send_batch", "orders", [number] * number_of_each, group="a")

    senders[first_commit].do(commit)
    messages = committed_orders.read(qty=10)
    senders[1 - first_commit].do(commit)

    assert bodies(messages) == [first_commit] * number_of_each
    assert committed_orders.read(qty=10) == []
    committed_orders.archive(messages)
    assert bodies(committed_orders.read(qty=10)) == [1 - first_commit] * number_of_each


def test_two_reads_that_open_a_group_fill_its_slots_once(committed_orders, change, actor):
    change(group_limit=2)
    committed_orders.send_batch(range(6), group="a")
    actor.do(begin)
    assert bodies(actor.do(call, "read", "orders", qty=10, in_transaction=True)) == [0, 1]

    assert committed_orders.read(qty=10) == []
    actor.do(commit)

    assert committed_orders.read(qty=10) == []


def test_a_locked_group_delays_nobody_and_the_next_read_repairs_it(committed_orders, change, actor):
    change(group_limit=2)
    for group in "ab":
        committed_orders.send_batch(range(5), group=group)
    messages = committed_orders.read(qty=10)
    lock_group(actor, "a")

    assert len(committed_orders.archive(messages)) == 4
    found = committed_orders.read(qty=10)
    assert [(m.group_key, m.body) for m in found] == [("b", 2), ("b", 3)]
    assert committed_orders.read(qty=10) == []

    actor.do(commit)
    found = committed_orders.read(qty=10)
    assert [(m.group_key, m.body) for m in found] == [("a", 2), ("a", 3)]


@fifo_or_two
def test_a_message_uncommitted_at_the_last_ack_is_not_lost(committed_orders, change, actor, slots):
    change(group_limit=slots)
    committed_orders.send(0, group="a")
    [last] = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(call, "send_batch", "orders", [1, 2, 3], group="a")

    committed_orders.archive(last)
    assert committed_orders.read(qty=10) == []
    actor.do(commit)

    assert bodies(committed_orders.read(qty=10)) == [1, 2][: slots or 1]


@fifo_or_two
def test_an_ack_under_an_old_snapshot_overlooks_no_message(committed_orders, change, actor, slots):
    change(group_limit=slots)
    committed_orders.send_batch(range(slots or 1), group="a")
    first, *_ = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(execute, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    actor.do(execute, "SELECT 1 FROM pgqueue_group")
    committed_orders.send("next", group="a")
    assert committed_orders.read(qty=10) == []  # processes the recheck of that send

    actor.do(call, "archive", "orders", first.receipt)
    actor.do(commit)

    assert bodies(committed_orders.read(qty=10)) == ["next"]


def test_an_operator_who_removes_the_next_message_strands_no_slot(committed_orders, change, actor):
    change(group_limit=2)
    ids = committed_orders.send_batch(range(6), group="a")
    messages = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(call, "delete", "orders", [ids[2]])

    committed_orders.archive(messages)
    actor.do(commit)

    assert rest_of(committed_orders) == [3, 4, 5]


def test_a_head_that_becomes_due_while_its_slot_is_filled_does_not_start(
    committed_orders, change, actor, sql
):
    change(group_limit=2)
    committed_orders.send_batch(range(4), group="a")
    first, _ = committed_orders.read(qty=10)
    committed_orders.retry({first.receipt: 0.5})
    actor.do(begin)
    actor.do(execute, "SELECT pgqueue_fill_slots(id, 'a', false) FROM pgqueue_queue")
    due = "SELECT vt <= clock_timestamp() FROM pgqueue_deferred WHERE id = %s"
    until(lambda: sql(due, [first.id]) == [(True,)])

    committed_orders.read(qty=10)
    actor.do(commit)
    committed_orders.read(qty=10)

    assert committed_orders.metrics().in_flight == 2


def test_a_slot_is_not_given_away_while_a_read_starts_its_head(
    committed_orders, change, actors, sql
):
    change(group_limit=2)
    committed_orders.send_batch(range(4), group="a")
    _, second = committed_orders.read(qty=10)
    holder, filler, reader = actors(3)
    holder.do(execute, "SELECT pg_advisory_lock(7)")
    committed_orders.retry({second.receipt: 1})
    sql("DELETE FROM pgqueue_recheck")  # as if the filling statement had found it
    # This statement begins before the message is due, and fills the slots afterwards.
    filling = filler.start(
        execute,
        "SELECT pgqueue_fill_slots(id, 'a', false)"
        " FROM (SELECT pg_advisory_lock(7) OFFSET 0) wait, pgqueue_queue",
    )
    waits = "SELECT 1 FROM pg_locks WHERE locktype = %s AND NOT granted"
    until(lambda: sql(waits, ["advisory"]))
    due = "SELECT vt <= clock_timestamp() FROM pgqueue_deferred WHERE id = %s"
    until(lambda: sql(due, [second.id]) == [(True,)])
    reader.do(begin)
    assert bodies(reader.do(call, "read", "orders", qty=10, in_transaction=True)) == [1]

    holder.do(execute, "SELECT pg_advisory_unlock(7)")
    until(lambda: filling.done() or sql(waits, ["transactionid"]))
    reader.do(commit)
    filling.result(timeout=20)

    assert committed_orders.read(qty=10) == []
    assert committed_orders.metrics().in_flight == 2


# Changes of limits


def in_flight_after(orders: BoundQueue, held: list[Any], limit: int) -> None:
    """Archive the held messages one by one: nothing starts until a slot is free."""
    while len(held) > limit:
        assert orders.read(qty=10) == []
        orders.archive(held.pop())
    assert len(held) + len(orders.read(qty=10)) == limit
    assert orders.read(qty=10) == []


def test_a_limit_lowered_during_a_read_counts_what_it_takes(committed_orders, change, actor):
    change(group_limit=4)
    committed_orders.send_batch(range(9), group="a")
    held = list(committed_orders.read(qty=2))
    actor.do(begin)
    held += actor.do(call, "read", "orders", qty=2, in_transaction=True)
    assert len(held) == 4

    change(group_limit=1)
    actor.do(commit)

    in_flight_after(committed_orders, held, 1)


def test_a_limit_lowered_during_an_ack_lets_nothing_start(committed_orders, change, actor):
    change(group_limit=3)
    committed_orders.send_batch(range(9), group="a")
    held = list(committed_orders.read(qty=10))
    actor.do(begin)
    actor.do(call, "archive", "orders", held.pop(0).receipt)  # fills the slot

    change(group_limit=2)
    actor.do(commit)

    in_flight_after(committed_orders, held, 2)


@pytest.mark.parametrize("limits", ["group_limit", "limit"])
def test_an_ack_during_a_change_of_limits_counts(committed_orders, change, actor, limits):
    change(**{limits: 3})
    committed_orders.send_batch(range(9), group="a" if limits == "group_limit" else None)
    held = list(committed_orders.read(qty=10))
    actor.do(begin)
    actor.do(execute, f'UPDATE pgqueue_queue SET "{limits}" = 2')

    committed_orders.archive(held.pop(0))
    assert len(committed_orders.read(qty=10)) <= 1, "by the old limit"
    actor.do(commit)
    Queue.objects.forget_all()

    assert committed_orders.read(qty=10) == []
    assert committed_orders.metrics().in_flight in (2, 3)


PAUSE = (
    "INSERT INTO pgqueue_group_setting (queue_id, group_key, paused)"
    " SELECT id, 'a', true FROM pgqueue_queue"
)


def test_a_pause_during_an_ack_lets_nothing_start(committed_orders, change, actors, sql):
    change(group_limit=2)
    committed_orders.send_batch(range(9), group="a")
    messages = committed_orders.read(qty=10)
    acker, operator = actors(2)
    acker.do(begin)
    acker.do(call, "archive", "orders", messages[0].receipt)  # fills the slot

    pause = operator.start(execute, PAUSE)
    until(lambda: pause.done() or sql(WAITING))
    acker.do(commit)
    pause.result(timeout=20)

    assert committed_orders.read(qty=10) == []
    Queue.objects.get().group_settings.all().delete()
    assert bodies(committed_orders.read(qty=10)) == [2]


def test_a_pause_beside_a_read_that_opens_the_group_lets_nothing_start(
    committed_orders, change, actors, sql
):
    change(group_limit=2)
    committed_orders.send_batch(range(9), group="a")
    reader, operator = actors(2)
    reader.do(begin)
    assert reader.do(call, "read", "orders", in_transaction=True, conditional={"x": 1}) == []

    pause = operator.start(execute, PAUSE)
    until(lambda: pause.done() or sql(WAITING))
    reader.do(commit)
    pause.result(timeout=20)

    assert committed_orders.read(qty=10) == []
    Queue.objects.get().group_settings.all().delete()
    assert bodies(committed_orders.read(qty=10)) == [0, 1]


def test_an_ack_during_a_pause_counts_after_it(committed_orders, change, actor):
    change(group_limit=2)
    committed_orders.send_batch(range(9), group="a")
    messages = committed_orders.read(qty=10)
    actor.do(begin)
    actor.do(execute, PAUSE)

    committed_orders.archive(messages)
    actor.do(commit)

    assert committed_orders.read(qty=10) == []
    Queue.objects.get().group_settings.all().delete()
    assert bodies(committed_orders.read(qty=10)) == [2, 3]


def test_a_process_that_knows_the_queue_without_a_rate_of_groups_heeds_it(committed_orders, actor):
    committed_orders.send_batch(range(5), group="a")
    [first] = actor.do(call, "read", "orders")
    Queue.objects.update(group_rate="1/h", group_burst=2)

    actor.do(call, "archive", "orders", first.receipt)

    assert [len(actor.do(call, "read", "orders")) for _ in range(2)] == [1, 0]


def test_a_fill_that_began_before_a_start_keeps_the_rate(committed_orders, change, actors):
    """Its statement is older than the start of the head that it finds."""
    change(group_rate="1/h")
    committed_orders.send_batch(range(3), group="a")
    committed_orders.read(conditional={"makes": "a head"})
    holder, filler = actors(2)
    holder.do(begin)
    holder.do(execute, "SELECT pg_advisory_xact_lock(7)")
    [(filler_pid,)] = filler.do(execute, "SELECT pg_backend_pid()")
    filled = filler.start(
        execute,
        "SELECT pgqueue_fill_slots(q.id, 'a', false) FROM pgqueue_queue q, "
        "LATERAL (SELECT pg_advisory_xact_lock(7) OFFSET 0) waits WHERE q.name = 'orders'",
    )
    until(lambda: run_sql("SELECT cardinality(pg_blocking_pids(%s))", [filler_pid]) == [(1,)])

    [started] = committed_orders.read(qty=9)
    holder.do(commit)
    filled.result(timeout=20)

    assert run_sql(
        "SELECT g.free_at >= d.last_read_at + interval '1 hour' "
        "FROM pgqueue_group g, pgqueue_deferred d WHERE g.group_key = 'a' AND d.id = %s",
        [started.id],
    ) == [(True,)]


# The whole queue


def begin_read(actor: Actor) -> None:
    """Begin a read of the whole queue that stays open."""
    actor.do(begin)
    number = Queue.objects.get(name="orders").pk
    actor.do(execute, "SELECT number FROM pgqueue_admit(%s, 9)", [number])


@pytest.mark.parametrize("end", [commit, rollback])
def test_a_read_waits_for_the_one_before_it_and_heeds_what_changed_meanwhile(
    committed_orders, change, actors, end, sql
):
    change(limit=5)
    committed_orders.send_batch(range(9))
    [message] = committed_orders.read()
    first, second = actors(2)
    begin_read(first)

    found = second.start(call, "read", "orders", qty=9)
    until(lambda: found.done() or sql(WAITING))
    assert not found.done()
    change(limit=3)
    committed_orders.retry({message.receipt: 0})
    first.do(end)

    assert len(found.result(timeout=20)) == 3
    assert committed_orders.read(qty=9) == []


def test_a_read_that_waited_starts_no_faster_than_the_rate_of_its_group(
    committed_orders, change, actors, sql
):
    change(limit=5, group_rate="1/m")
    committed_orders.send_batch(range(4), group=["a", "a", "b", "b"])
    [message] = committed_orders.read()  # gives both groups their heads
    first, reader = actors(2)
    begin_read(first)

    found = reader.start(call, "read", "orders")
    until(lambda: sql(WAITING))
    [(before,)] = sql("SELECT clock_timestamp()")
    first.do(rollback)
    [waited] = found.result(timeout=20)
    [(free_at,)] = sql("SELECT free_at FROM pgqueue_group WHERE group_key = %s", [waited.group])

    assert waited.group != message.group
    assert free_at >= before + dt.timedelta(minutes=1)
    assert committed_orders.read() == []


def test_reads_that_waited_start_no_faster_than_the_rate(committed_orders, change, actors, sql):
    """Their statements began before and after the time between two starts."""
    change(rate="120/m")
    committed_orders.send_batch(range(9))
    first, *readers = actors(3)
    begin_read(first)

    found = [readers[0].start(call, "read", "orders")]
    until(lambda: len(sql(WAITING)) == 1)
    sql("SELECT pg_sleep(0.6)")
    found.append(readers[1].start(call, "read", "orders"))
    until(lambda: len(sql(WAITING)) == 2)
    first.do(rollback)

    assert sum(len(future.result(timeout=20)) for future in found) == 1


def test_a_first_limit_of_the_queue_counts_batch_leases(committed_orders, change, sql):
    committed_orders.send_batch(range(99))
    held = committed_orders.read(qty=1) + committed_orders.read(qty=20)
    assert sql("SELECT 1 FROM pgqueue_lease")
    change(limit=2)

    assert committed_orders.read(qty=9) == []
    committed_orders.archive(held[1:])
    assert len(committed_orders.read(qty=9)) == 1
    assert committed_orders.read(qty=9) == []


def test_an_expired_batch_lease_cannot_be_extended_after_a_read_under_the_first_limit(
    committed_orders, change, sql
):
    committed_orders.send_batch(range(99))
    held = committed_orders.read(qty=1) + committed_orders.read(qty=20, vt=0)
    assert sql("SELECT 1 FROM pgqueue_lease")
    committed_orders.archive(held[0])
    change(limit=2)

    until(lambda: len(committed_orders.read(qty=9)) == 2)

    assert len(committed_orders.set_vt([message.receipt for message in held[1:]], 60).lost) == 20
    assert committed_orders.metrics().in_flight == 2


def test_a_batch_lease_that_is_locked_at_its_end_counts(committed_orders, change, actor, sql):
    committed_orders.send_batch(range(99))
    held = committed_orders.read(qty=1) + committed_orders.read(qty=20, vt=0)
    committed_orders.archive(held[0])
    change(limit=2)
    actor.do(begin)
    actor.do(execute, "SELECT FROM pgqueue_lease FOR UPDATE")

    assert committed_orders.read(qty=9) == []


def test_a_lease_that_is_extended_at_its_end_counts_as_in_flight(committed_orders, change, actor):
    change(limit=2)
    committed_orders.send_batch(range(9))
    first, second = committed_orders.read(qty=2, vt=0)
    actor.do(begin)
    actor.do(call, "set_vt", "orders", first.receipt, 60)

    assert [message.id for message in committed_orders.read(qty=9)] == [second.id]
    actor.do(commit)

    assert committed_orders.read(qty=9) == []


@pytest.mark.parametrize(
    "setting",
    [{"limit": 2}, {"rate": "1/h"}, {"group_limit": 2}, {"group_rate": "1/h"}],
    ids=lambda setting: next(iter(setting)),
)
def test_a_read_in_another_isolation_level_is_refused(committed_orders, change, actor, setting):
    """An older snapshot would not show what others have leased."""
    change(**setting)
    committed_orders.send(1, group="a")
    actor.do(execute, "SET default_transaction_isolation = 'repeatable read'")

    with pytest.raises(DatabaseError, match="READ COMMITTED, not in REPEATABLE READ"):
        actor.do(call, "read", "orders")

    assert len(committed_orders.read()) == 1


def test_an_ack_in_another_isolation_level_fills_no_slot(committed_orders, change, actor):
    change(group_limit=2)
    committed_orders.send_batch(range(9), group="a")
    first, _second = committed_orders.read(qty=9)
    actor.do(execute, "SET default_transaction_isolation = 'repeatable read'")

    actor.do(call, "archive", "orders", first.receipt)

    assert len(committed_orders.read(qty=9)) == 1
    assert committed_orders.read(qty=9) == []


def test_a_slot_of_the_queue_is_free_once_the_ack_is_committed(committed_orders, change, actor):
    change(limit=2)
    committed_orders.send_batch(range(9))
    first, second = committed_orders.read(qty=9)
    actor.do(begin)
    actor.do(call, "archive", "orders", first.receipt)

    assert committed_orders.read(qty=9) == []
    actor.do(rollback)
    assert committed_orders.read(qty=9) == []
    actor.do(call, "archive", "orders", second.receipt)
    assert len(committed_orders.read(qty=9)) == 1
    assert committed_orders.read(qty=9) == []


@pytest.mark.parametrize("limits", [{"rate": "1/h"}, {"group_rate": "1/h"}])
def test_a_read_beside_another_of_the_same_rate_starts_nothing_more(
    committed_orders, change, actors, limits
):
    change(**limits)
    committed_orders.send_batch(range(9), group="a")
    futures = [actor.start(call, "read", "orders", qty=9) for actor in actors(2) * 3]

    assert sum(len(future.result(timeout=20)) for future in futures) == 1


def test_a_locked_group_with_a_rate_delays_nobody(committed_orders, change, actor):
    change(group_rate="1/h")
    for group in "ab":
        committed_orders.send_batch(range(4), group=group)
    committed_orders.read(qty=9)
    Queue.objects.update(group_rate="2/h", group_burst=2)  # a second slot
    lock_group(actor, "a")

    assert [m.group_key for m in committed_orders.read(qty=9)] == ["b"]
    actor.do(commit)

    assert [m.group_key for m in committed_orders.read(qty=9)] == ["a"]
