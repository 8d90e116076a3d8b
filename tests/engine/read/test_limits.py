"""Limits and rates of groups and of whole queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_pgqueue import signals
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.maintenance.upkeep import sweep_slots
from django_pgqueue.maintenance.work import Work
from django_pgqueue.models import BoundQueue, GroupSetting, Message, Queue, queue
from tests.conftest import run_sql
from tests.engine.read.test_grouped import ENDS, hot_rows
from tests.hearing import heard
from tests.messages import bodies

pytestmark = pytest.mark.usefixtures("db")


def limited(**settings: Any) -> BoundQueue:
    Message.objects.create_queue("orders")
    Queue.objects.filter(name="orders").update(**settings)
    return queue("orders")


def sweep(found: Queue) -> None:
    """Delete idle slots, as a round of maintenance does; a whole round commits."""
    sweep_slots(Work(found, 1.0, 0.1, lambda removed: None))


def setting_of(group: str, **settings: Any) -> GroupSetting:
    return Queue.objects.get(name="orders").group_settings.create(group_key=group, **settings)


def change(where: str, **settings: Any) -> None:
    """Change settings of the whole queue, of each of its groups, or of the group a."""
    if where == "a group":
        setting_of("a", **settings)
    elif where == "each group":
        Queue.objects.update(**{f"group_{name}": value for name, value in settings.items()})
    else:
        Queue.objects.update(**settings)


BACK: dict[str, Callable[[BoundQueue, Message], object]] = {
    "retry": lambda orders, message: orders.retry({message.receipt: 0}),
    "release": lambda orders, message: orders.release([message.receipt]),
    "expiry": lambda orders, message: orders.set_vt(message, 0),
}
each_way_back = pytest.mark.parametrize("give_back", BACK.values(), ids=BACK)


def groups(messages: Iterable[Message]) -> list[str | None]:
    return [message.group_key for message in messages]


def in_turn(orders: BoundQueue) -> list[Any]:
    """Read one message after the other, each once the previous one is archived."""
    seen = []
    while messages := orders.read(qty=1):
        seen += bodies(messages)
        orders.archive(messages)
    return seen


def an_hour_passes(hours: int = 1) -> None:
    """Move all delays and spacings into the past, but no lease."""
    for change in (
        "pgqueue_deferred d SET vt = vt - %s * interval '1 hour' WHERE state <> 'PROCESSING'"
        " OR EXISTS (SELECT FROM pgqueue_group g WHERE g.head = d.id AND g.free_at = d.vt)",
        "pgqueue_group SET free_at = free_at - %s * interval '1 hour'",
        "pgqueue_waiting SET vt = vt - %s * interval '1 hour'",
    ):
        run_sql(f"UPDATE {change}", [hours])


def test_a_group_has_as_many_messages_in_flight_as_its_limit():
    orders = limited(group_limit=3)
    for n in range(10):
        orders.send(n, group="a")

    first = orders.read(qty=10)
    assert bodies(first) == [0, 1, 2]
    assert orders.read(qty=10) == []
    orders.archive(first[1])
    assert bodies(orders.read(qty=10)) == [3]


def test_a_retried_message_holds_no_slot(sql):
    orders = limited(group_limit=1 + 1)
    for n in range(5):
        orders.send(n, group="a")
    a, b = orders.read(qty=5)
    orders.retry({a.receipt: 3600})
    assert bodies(orders.read(qty=5)) == [2]
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() WHERE id = %s", [a.id])
    assert orders.read(qty=5) == []
    orders.archive(b)
    assert bodies(orders.read(qty=5)) == [0]


def test_a_delayed_message_holds_no_slot():
    orders = limited(group_limit=2)
    orders.send(0, group="a", delay=3600)
    orders.send(1, group="a", delay=3600)
    orders.send(2, group="a")
    assert bodies(orders.read(qty=5)) == [2]


def test_a_paused_group_starts_nothing():
    orders = limited(group_limit=2)
    setting = Queue.objects.get().group_settings.create(group_key="a", paused=True)
    for n in range(3):
        orders.send(n, group="a")
        orders.send(n, group="b")
    assert groups(orders.read(qty=5)) == ["b", "b"]
    setting.delete()
    assert bodies(orders.read(qty=5)) == [0, 1]
    Queue.objects.get().group_settings.create(group_key="c", paused=False)
    orders.send(0, group="c")
    Queue.objects.get().group_settings.filter(group_key="c").update(paused=True)
    assert orders.read(qty=5) == []


def test_a_whole_queue_has_a_limit():
    orders = limited(limit=3)
    orders.send_batch(range(10))
    first = orders.read(qty=2)
    second = orders.read(qty=5)
    assert len(first + second) == 3
    assert orders.read() == []
    orders.archive(first)
    assert len(orders.read(qty=5)) == 2
    Queue.objects.update(limit=1)
    orders.archive(second)
    assert orders.read(qty=5) == []
    Queue.objects.update(limit=None)
    assert len(orders.read(qty=None)) == 5


def test_a_read_of_all_takes_what_the_limit_leaves():
    orders = limited(limit=5)
    orders.send_batch(range(9))
    orders.read(qty=1)

    assert len(orders.read(qty=None)) == 4
    assert orders.read(qty=None) == []


def test_an_exhausted_message_of_a_queue_with_a_limit_is_reported_once():
    orders = limited(limit=1, max_deliveries=1)
    orders.send_batch(range(3))
    [first] = orders.read(vt=0)

    with heard(signals.messages_exhausted) as calls:
        [second] = orders.read()

    assert [r.id for call in calls for r in call["receipts"]] == [first.id]
    assert second.body == 1


def test_an_expired_lease_loses_its_slot_and_receipt():
    orders = limited(limit=2)
    orders.send_batch(range(3))
    first, second = orders.read(qty=2, vt=0)

    other = orders.read(qty=3, conditional=2)

    assert bodies(other) == [2]
    assert len(orders.archive([first, second]).lost) == 2
    assert bodies(orders.read(qty=3)) == [0]
    assert orders.read(qty=3) == []


def test_a_whole_queue_has_a_rate(sql):
    orders = limited(rate="1/h", burst=3)
    orders.send_batch(range(10))
    assert len(orders.read(qty=2)) == 2
    assert len(orders.read(qty=2)) == 1
    assert orders.read(qty=2) == []
    assert 3500 < orders.next_due() < 3601 or orders.next_due() <= 30
    sql("UPDATE pgqueue_group SET free_at = free_at - interval '1 hour'")
    assert len(orders.read(qty=5)) == 1


def test_a_group_has_a_rate(sql):
    orders = limited(group_rate="1/h")
    for n in range(3):
        orders.send(n, group="a")
        orders.send(n, group="b")
    assert len(orders.read(qty=5)) == 2
    assert orders.read(qty=5) == []
    sql("UPDATE pgqueue_group SET free_at = free_at - interval '1 hour'")
    sql("UPDATE pgqueue_deferred SET vt = vt - interval '1 hour' WHERE state <> 'PROCESSING'")
    assert bodies(orders.read(qty=5)) == [1, 1]
    assert orders.read(qty=5) == []


def test_a_group_rate_has_a_burst():
    orders = limited(group_rate="1/h", group_burst=3)
    for n in range(9):
        orders.send(n, group="a")
    assert bodies(orders.read(qty=2)) == [0, 1]
    assert bodies(orders.read(qty=5)) == [2]
    assert orders.read(qty=5) == []


@pytest.mark.parametrize("setting", [{"limit": 2}, {"rate": "1/s"}, {"group_rate": "1/s"}])
def test_a_read_in_a_transaction_is_refused_if_there_is_a_limit_of_the_queue_or_a_rate(setting):
    orders = limited(**setting)
    orders.send(1, group="a")
    with transaction.atomic(), pytest.raises(InvalidArgument, match="cannot be read in your"):
        orders.read(in_transaction=True)
    assert bodies(orders.pop()) == [1]


def reasons(orders, *ids):
    return [orders.why(pk).reason for pk in ids]


def test_each_message_tells_why_it_waits():
    orders = limited(group_limit=2)
    ids = [orders.send(n, group="a") for n in range(4)]
    orders.read()
    assert reasons(orders, *ids) == [None, None, "group_limit", "group_limit"]
    setting = Queue.objects.get().group_settings.create(group_key="a", paused=True)
    assert reasons(orders, *ids) == [None, *["group_paused"] * 3]
    setting.delete()
    Queue.objects.update(group_limit=None, group_rate="1/h")
    orders.read(qty=5)
    assert reasons(orders, *ids) == [None, None, "group_rate", "group_rate"]
    until = [orders.why(pk).until for pk in ids[2:]]
    assert until[0] == until[1] > timezone.now()


def test_at_a_group_rate_a_message_is_behind_heads_that_have_not_started():
    orders = limited(group_rate="1/h", group_burst=2)
    ids = [orders.send(n, group="a") for n in range(3)]
    orders.send("first", priority=1)
    assert bodies(orders.read()) == ["first"]
    assert reasons(orders, *ids) == [None, None, "group"]


def test_messages_of_a_whole_queue_tell_why_they_wait():
    orders = limited(limit=1)
    ids = [orders.send(n) for n in range(2)] + [orders.send(2, delay=60)]
    orders.read()
    assert reasons(orders, *ids) == [None, "limit", "scheduled"]
    Queue.objects.update(limit=None, rate="1/h")
    orders.read()
    orders.retry({m.receipt: 60 for m in orders.read(qty=5)})
    assert reasons(orders, ids[2]) == ["scheduled"]
    assert orders.why(1) is None
    new = orders.send(3)
    assert orders.why(new).reason == "rate"
    assert orders.why(new).until > timezone.now()
    Queue.objects.update(paused=True)
    assert reasons(orders, new) == ["queue_paused"]


def test_messages_of_a_fifo_group_wait_behind_its_head():
    Message.objects.create_queue("orders")
    orders = queue("orders")
    ids = [orders.send(n, group="a") for n in range(2)]
    assert reasons(orders, *ids) == [None, "group"]
    [head] = orders.read()
    assert reasons(orders, *ids) == [None, "group"]
    orders.retry({head.receipt: 60})
    assert reasons(orders, *ids) == ["retry", "group"]


def test_maintenance_deletes_the_slots_of_idle_groups(sql):
    orders = limited(group_rate="1/h", group_burst=2)
    orders.send(1, group="a")
    orders.archive(orders.read())
    sweep(Queue.objects.get())
    assert sql("SELECT count(*) FROM pgqueue_group") == [(1,)]
    sql("UPDATE pgqueue_group SET free_at = statement_timestamp()")
    sweep(Queue.objects.get())
    assert sql("SELECT count(*) FROM pgqueue_group") == [(0,)]


# Rates


def test_slow_handlers_reach_the_rate_of_their_group():
    orders = limited(group_rate="1/h")
    orders.send_batch(range(4), group="a")

    started = []
    for _ in range(3):
        started += bodies(orders.read(qty=5))
        an_hour_passes()

    assert started == [0, 1, 2], "although no handler has ended"


def test_after_an_idle_time_only_the_burst_starts():
    orders = limited(group_rate="1/h", group_burst=2)
    orders.send(0, group="a")
    orders.archive(orders.read())
    an_hour_passes(24)
    orders.send_batch(range(1, 9), group="a")

    assert bodies(orders.read(qty=9)) == [1, 2]

    an_hour_passes()
    assert orders.read(qty=9) == []
    an_hour_passes()
    assert bodies(orders.read(qty=9)) == [3, 4]


def test_an_emptied_group_keeps_its_spacing():
    orders = limited(group_rate="1/h")
    for n in range(3):
        orders.send(n, group="a")
        orders.archive(orders.read())

    assert orders.metrics().length == 2
    an_hour_passes()
    assert bodies(orders.read(qty=5)) == [1]


def test_a_limit_and_a_rate_hold_together():
    orders = limited(group_limit=2, group_rate="1/h")
    orders.send_batch(range(6), group="a")
    first = orders.read(qty=6)
    assert bodies(first) == [0, 1]

    an_hour_passes(24)
    assert orders.read(qty=6) == [], "the limit"

    orders.archive(first)
    second = orders.read(qty=6)
    assert bodies(second) == [2, 3]
    orders.archive(second)
    an_hour_passes()
    assert orders.read(qty=6) == [], "the rate"
    an_hour_passes()
    assert bodies(orders.read(qty=6)) == [4, 5]


@pytest.mark.parametrize("limits", [{}, {"group_limit": 1}])
@each_way_back
def test_a_message_that_comes_again_needs_another_start(give_back, limits):
    orders = limited(group_rate="1/h", **limits)
    orders.send_batch(range(2), group="a")
    [message] = orders.read()

    give_back(orders, message)

    assert orders.read(qty=5) == []

    an_hour_passes()
    assert len(orders.read(qty=5)) == 1
    assert orders.read(qty=5) == []


@pytest.mark.parametrize("where", ["each group", "a group"])
def test_a_raised_rate_counts_for_messages_that_wait_for_the_old_one(where):
    orders = limited(group_rate="1/d")
    orders.send_batch(range(4), group="a")
    orders.send_batch(range(4), group="b")
    assert len(orders.read(qty=9)) == 2

    change(where, rate="1/h")

    assert orders.read(qty=9) == []
    an_hour_passes()
    assert groups(orders.read(qty=9)) == (["a", "b"] if where == "each group" else ["a"])


def test_a_whole_queue_starts_only_its_burst_after_an_idle_time():
    orders = limited(rate="1/h", burst=2)
    orders.send_batch(range(9))
    assert len(orders.read(qty=9)) == 2

    an_hour_passes(24)

    assert len(orders.read(qty=9)) == 2
    an_hour_passes()
    assert len(orders.read(qty=9)) == 1


def test_retries_count_against_the_rate_of_the_queue():
    orders = limited(rate="1/h")
    orders.send_batch(range(2))
    [message] = orders.read()
    orders.retry({message.receipt: 0})

    assert orders.read(qty=5) == []
    an_hour_passes()
    assert bodies(orders.read(qty=5)) == [0]


# Changes


@pytest.mark.parametrize("where", ["each group", "a group"])
def test_a_raised_limit_counts_at_once(where):
    orders = limited(group_limit=1)
    orders.send_batch(range(6), group="a")
    assert bodies(orders.read(qty=9)) == [0]

    change(where, limit=3)

    assert bodies(orders.read(qty=9)) == [1, 2]


def test_a_limit_and_a_rate_can_be_removed():
    orders = limited(group_rate="1/d", group_burst=2)
    orders.send_batch(range(6), group="a")
    first = orders.read(qty=9)
    Queue.objects.update(group_rate=None, group_burst=None)

    orders.archive(first)

    assert bodies(orders.read(qty=9)) == [2]
    Queue.objects.update(group_limit=3)
    assert bodies(orders.read(qty=9)) == [3, 4]


@pytest.mark.parametrize("where", ["the queue", "each group", "a group"])
def test_no_message_starts_until_a_lowered_limit_has_a_free_slot(where):
    whole = where == "the queue"
    orders = limited(**{"limit" if whole else "group_limit": 5})
    orders.send_batch(range(12), group=None if whole else "a")
    in_flight = orders.read(qty=4)

    change(where, limit=2)

    for message in in_flight[:2]:
        assert orders.read(qty=9) == []
        orders.archive(message)
    assert orders.read(qty=9) == []
    orders.archive(in_flight[2])
    assert bodies(orders.read(qty=9)) == [4]
    orders.archive(in_flight[3])
    assert bodies(orders.read(qty=9)) == [5]
    assert orders.read(qty=9) == []


@each_way_back
@pytest.mark.parametrize("limits", ["group_limit", "limit"])
def test_no_message_comes_again_above_a_lowered_limit(limits, give_back):
    orders = limited(**{limits: 3})
    orders.send_batch(range(9), group="a" if limits == "group_limit" else None)
    first, second, third = orders.read(qty=3)
    Queue.objects.update(**{limits: 1})

    give_back(orders, first)

    assert orders.read(qty=9) == []
    orders.archive(second)
    assert orders.read(qty=9) == []
    orders.archive(third)
    assert len(orders.read(qty=9)) == 1
    assert orders.read(qty=9) == []


@pytest.mark.parametrize("limits", ["group_limit", "limit"])
def test_leases_that_expired_above_a_lowered_limit_free_their_slots(limits):
    orders = limited(**{limits: 3})
    orders.send_batch(range(5), group="a" if limits == "group_limit" else None)
    orders.read(qty=3, vt=0)
    Queue.objects.update(**{limits: 1})

    assert len(in_turn(orders)) == 5


def test_a_first_limit_of_the_queue_counts_what_is_in_flight():
    orders = limited()
    orders.send_batch(range(9))
    held = orders.read(qty=3)
    Queue.objects.update(limit=2)

    assert orders.read(qty=9) == []
    orders.archive(held[1:])
    assert len(orders.read(qty=9)) == 1
    assert orders.read(qty=9) == []


def test_after_a_limit_is_lowered_the_rest_of_it_can_be_used():
    orders = limited(limit=5)
    orders.send_batch(range(9))
    orders.read()
    Queue.objects.update(limit=2)

    assert len(orders.read(qty=9)) == 1


@pytest.mark.parametrize("give_back", [*BACK.values()], ids=BACK)
def test_messages_that_came_back_leave_the_whole_limit_to_others(give_back):
    orders = limited(limit=20)
    orders.send_batch(range(60))
    for half in (orders.read(qty=10), orders.read(qty=10)):
        for message in half:
            give_back(orders, message)

    assert len(orders.read(qty=10)) == 10
    assert len(orders.read(qty=20)) == 10


@pytest.mark.parametrize("give_back", [*BACK.values()], ids=BACK)
def test_a_message_that_came_back_counts_once(give_back):
    orders = limited(limit=2)
    orders.send_batch(range(9))
    [message] = orders.read()
    give_back(orders, message)

    assert [m.id for m in orders.read()] == [message.id]
    assert len(orders.read(qty=9)) == 1


def test_a_raised_rate_of_the_queue_holds_from_the_next_start_on():
    orders = limited(rate="1/d")
    orders.send_batch(range(9))
    orders.read()
    Queue.objects.update(rate="1/h")

    assert orders.read() == []
    [wait] = {orders.why(message.id) for message in orders.peek()}
    assert wait.reason == "rate"
    assert 0 < (wait.until - timezone.now()).total_seconds() <= 3600
    an_hour_passes()
    assert len(orders.read(qty=9)) == 1


def test_a_clock_that_was_ahead_delays_a_rate_by_one_start(sql):
    orders = limited(rate="1/h")
    orders.send_batch(range(9))
    sql("UPDATE pgqueue_group SET free_at = now() + interval '1 year' WHERE group_key = ''")
    orders.read()
    sql("UPDATE pgqueue_group SET free_at = now() + interval '1 year' WHERE group_key = ''")

    assert orders.read() == []
    an_hour_passes()
    assert len(orders.read(qty=9)) == 1


@pytest.mark.parametrize("exception", [{"limit": 1}, {"rate": "1/d"}, {"paused": True}])
def test_settings_of_a_group_leave_the_others_alone(exception):
    orders = limited(group_limit=2, group_rate="1/h")
    setting_of("a", **exception)
    for group in "abc":
        orders.send_batch(range(4), group=group)

    started = groups(orders.read(qty=20))

    assert (started.count("b"), started.count("c")) == (2, 2)
    assert started.count("a") == (0 if "paused" in exception else 1 if "limit" in exception else 2)


def test_a_group_alone_may_have_a_limit():
    orders = limited()
    setting_of("a", limit=3)
    for group in "ab":
        orders.send_batch(range(5), group=group)

    assert groups(orders.read(qty=20)) == ["a", "a", "a", "b"]
    Queue.objects.get().group_settings.all().delete()
    assert orders.read(qty=20) == []


def test_a_resumed_group_goes_on_at_once():
    orders = limited(group_limit=2)
    orders.send_batch(range(6), group="a")
    first = orders.read()
    setting = setting_of("a", paused=True)
    orders.archive(first)
    assert orders.read(qty=9) == []

    setting.paused = False
    setting.save()

    assert bodies(orders.read(qty=9)) == [1, 2]


def test_a_paused_group_starts_no_retry():
    orders = limited(group_limit=2)
    orders.send_batch(range(3), group="a")
    first, second = orders.read(qty=9)
    setting = setting_of("a", paused=True)
    orders.retry({first.receipt: 0})
    orders.release([second.receipt])

    assert orders.read(qty=9) == []
    setting.delete()
    assert bodies(orders.read(qty=9)) == [0, 1]


def test_an_expired_lease_in_a_paused_group_is_not_delivered_again():
    orders = limited(group_limit=2)
    orders.send_batch(range(3), group="a")
    orders.read(qty=9, vt=0)

    setting = setting_of("a", paused=True)

    assert orders.read(qty=9) == []
    setting.delete()
    assert bodies(orders.read(qty=9)) == [0, 1]


# Order


def test_a_group_with_one_slot_is_in_order():
    orders = limited(group_limit=2)
    Queue.objects.update(group_limit=1)
    orders.send_batch(range(4), group="a")
    orders.send(4, group="a", delay=7200)
    orders.send(5, group="a")

    [first] = orders.read(qty=9)
    orders.retry({first.receipt: 3600})
    assert orders.read(qty=9) == []
    an_hour_passes()
    assert in_turn(orders) == [0, 1, 2, 3]
    an_hour_passes()
    assert in_turn(orders) == [4, 5]


@pytest.mark.parametrize("one", [None, 1])
@pytest.mark.parametrize("acked", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_order_comes_back_when_a_limit_is_removed(one, acked):
    orders = limited(group_limit=3)
    orders.send_batch(range(7), group="a")
    first = orders.read(qty=9)
    Queue.objects.update(group_limit=one)

    for place in acked:
        assert orders.read(qty=9) == []
        orders.archive(first[place])

    assert in_turn(orders) == [3, 4, 5, 6]


def test_a_batch_read_before_there_was_a_limit_keeps_its_order():
    orders = limited()
    orders.send_batch(range(6), group="a")
    first, second, third = orders.read_grouped(qty=3)
    Queue.objects.update(group_limit=2)
    Queue.objects.update(group_limit=None)

    orders.archive(first)
    assert orders.read(qty=9) == []
    orders.archive(third)
    assert orders.read(qty=9) == []
    orders.archive(second)

    assert in_turn(orders) == [3, 4, 5]


def test_a_batch_read_before_there_was_a_limit_counts_as_in_flight():
    orders = limited()
    orders.send_batch(range(6), group="a")
    batch = orders.read_grouped(qty=3)

    Queue.objects.update(group_limit=2)

    for message in batch[:2]:
        orders.archive(message)
    assert len(orders.read(qty=9)) == 1


# How messages leave, and what else there is


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_slot_is_freed_however_its_head_ends(end):
    orders = limited(group_limit=2)
    orders.send_batch(range(5), group="a")
    first, _second = orders.read(qty=9)

    end(orders, first)

    assert bodies(orders.read(qty=9)) == [2]


@pytest.mark.parametrize("operation", ["archive", "delete", "cancel"])
def test_unread_heads_and_waiting_messages_can_be_removed(operation):
    orders = limited(group_limit=2)
    ids = orders.send_batch(range(8), group="a")
    orders.archive(orders.read(qty=2))  # 2 and 3 are heads

    removed = getattr(orders, operation)([ids[2], ids[4], ids[6]])

    assert sorted(removed) == [ids[2], ids[4], ids[6]]
    assert in_turn(orders) == [3, 5, 7]
    assert hot_rows() == 0


def test_a_purge_empties_the_groups():
    orders = limited(group_limit=2)
    for group in "ab":
        orders.send_batch(range(9), group=group)
    orders.read(qty=3)

    assert orders.purge() == 18
    assert orders.read() == []
    assert hot_rows() == 0
    orders.send_batch(range(3), group="a")
    assert bodies(orders.read(qty=9)) == [0, 1]


@pytest.mark.parametrize("limits", [{"group_limit": 2}, {"limit": 2, "rate": "1/h"}])
def test_a_dropped_queue_leaves_no_slots(limits, sql):
    orders = limited(**limits)
    setting_of("a", limit=3)
    orders.send_batch(range(9), group="a")
    orders.read(qty=2)

    orders.drop()

    assert hot_rows() == 0
    assert sql("SELECT count(*) FROM pgqueue_recheck") == [(0,)]
    assert sql("SELECT count(*) FROM pgqueue_group_setting") == [(0,)]


@pytest.mark.parametrize("number", [1, 30])
def test_expired_heads_and_waiting_messages_free_their_slots(number, sql):
    orders = limited(group_limit=2)
    orders.send_batch(range(number), group="a", expires=3600)
    orders.send("last", group="a")
    sql("UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE body <> '\"last\"'")

    assert bodies(orders.read(qty=9)) == ["last"]
    assert sql("SELECT state, count(*) FROM pgqueue_archive GROUP BY state") == [
        ("EXPIRED", number)
    ]


def test_an_expired_message_spends_no_start(sql):
    orders = limited(group_rate="1/h", rate="1/h")
    orders.send(0, group="a", expires=3600)
    orders.send(1, group="b")
    sql("UPDATE pgqueue_message SET expires_at = statement_timestamp() WHERE body = '0'")

    assert bodies(orders.read(qty=9)) == [1]


def test_a_message_that_waits_holds_its_unique_key():
    orders = limited(group_limit=2)
    ids = [orders.send(n, group="a", unique=f"k{n}", until="started") for n in range(4)]
    first = orders.read(qty=9)

    assert bodies(first) == [0, 1]
    assert orders.send("again", group="a", unique="k3", until="started") == ids[3]
    replacing = orders.send(
        "instead", group="a", unique="k2", until="started", on_conflict="replace"
    )

    assert replacing.conflict == "replaced"
    orders.archive(first)
    assert bodies(orders.read(qty=9)) == [3, "instead"]


def test_dead_letters_free_slots_and_keep_the_limit_of_their_queue(db):
    dead = Message.objects.create_queue("dead")
    dead.group_limit = 2
    dead.save()
    Message.objects.create_queue("orders", dead_letter_queue="dead", max_deliveries=1)
    Queue.objects.filter(name="orders").update(group_limit=3)
    orders = queue("orders")
    orders.send_batch(range(5), group="a")

    assert bodies(orders.read(qty=9, vt=0)) == [0, 1, 2]
    assert bodies(orders.read(qty=9, vt=0)) == [3, 4]
    assert orders.read(qty=9) == []

    assert bodies(queue("dead").read(qty=9)) == [0, 1]
    assert queue("dead").redrive() == 3
    assert bodies(orders.read(qty=9)) == [2, 3, 4]


@pytest.mark.parametrize("read", ["read_grouped", "read_grouped_rr", "read_grouped_head"])
@pytest.mark.parametrize("limits", [{"group_limit": 2}, {"limit": 9}])
def test_a_grouped_read_takes_heads_only_in_a_queue_with_limits(read, limits):
    orders = limited(**limits)
    for group in "ab":
        orders.send_batch(range(5), group=group)

    messages = getattr(orders.pgmq, read)(qty=9)

    slots = limits.get("group_limit", 1)
    assert sorted(groups(messages)) == ["a"] * slots + ["b"] * slots
    assert getattr(orders.pgmq, read)(qty=9) == []


def test_heads_come_by_their_priority():
    orders = limited(group_limit=2)
    orders.send_batch(range(3), group="a")
    orders.send_batch(range(3), group="b", priority=7)

    assert groups(orders.read(qty=3)) == ["b", "b", "a"]


def test_a_delayed_message_is_delivered_once_it_is_due_and_a_slot_is_free():
    orders = limited(group_limit=1 + 1)
    orders.send("later", group="a", delay=3600)
    orders.send_batch(range(4), group="a")
    first = orders.read(qty=9)
    an_hour_passes()
    assert orders.read(qty=9) == []

    orders.archive(first[0])

    assert bodies(orders.read(qty=9)) == ["later"]


def test_set_vt_by_id_delays_heads_and_waiting_messages():
    orders = limited(group_limit=2)
    ids = orders.send_batch(range(6), group="a")
    first = orders.read(qty=2)
    orders.archive(first)  # 2 and 3 are heads

    assert sorted(orders.set_vt([ids[2], ids[4]], 3600)) == [ids[2], ids[4]]

    assert in_turn(orders) == [3, 5]
    an_hour_passes()
    assert sorted(in_turn(orders)) == [2, 4]


def test_extending_a_lease_keeps_its_slot():
    orders = limited(group_limit=2)
    orders.send_batch(range(5), group="a")
    messages = orders.read(qty=9)

    assert len(orders.set_vt([m.receipt for m in messages], 60)) == 2

    assert orders.read(qty=9) == []
    assert len(orders.archive(messages)) == 2


def test_an_expired_lease_keeps_its_slot_and_is_delivered_first():
    orders = limited(group_limit=2)
    orders.send_batch(range(5), group="a")
    expired = orders.read(qty=9, vt=0)

    again = orders.read(qty=9)

    assert [(m.body, m.read_ct) for m in again] == [(0, 2), (1, 2)]
    assert orders.archive(expired).lost == [m.receipt for m in expired]
    assert orders.read(qty=9) == []


@pytest.mark.parametrize("limits", [{"group_limit": 2}, {"limit": 2}, {"group_rate": "1/h"}])
def test_a_conditional_read_keeps_the_limit(limits):
    orders = limited(**limits)
    for n in range(6):
        orders.send({"n": n, "odd": n % 2 == 1}, group="a")
    for n in range(6):
        orders.send({"n": n, "odd": n % 2 == 1}, group=f"b{n}")

    found = orders.read(qty=20, conditional={"odd": True})

    assert all(m.body["odd"] for m in found)
    assert groups(found).count("a") <= 1
    if "limit" in limits:
        assert len(found) == 2


def test_pop_frees_the_slots_of_what_it_takes():
    orders = limited(group_limit=2)
    orders.send_batch(range(5), group="a")

    assert [bodies(orders.pop(9)) for _ in range(3)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("limits", [{"rate": "1/h"}, {"group_rate": "1/h"}])
def test_pop_keeps_a_rate(limits):
    orders = limited(**limits)
    orders.send_batch(range(5), group="a")

    assert [bodies(orders.pop(9)) for _ in range(2)] == [[0], []]
    an_hour_passes()
    assert bodies(orders.pop(9)) == [1]


def test_messages_without_a_group_know_no_limit_of_groups():
    orders = limited(group_limit=2, group_rate="1/h")
    orders.send_batch(range(5))
    orders.send_batch(range(5), group="a")

    assert groups(orders.read(qty=20)) == [None] * 5 + ["a", "a"]
    assert len(orders.read(qty=None)) == 0


def test_a_limit_of_the_queue_holds_over_those_of_its_groups():
    orders = limited(limit=3, group_limit=2)
    for group in "abc":
        orders.send_batch(range(4), group=group)

    first = orders.read(qty=20)
    assert len(first) == 3
    assert orders.read(qty=20) == []
    orders.archive(first[0])
    assert len(orders.read(qty=20)) == 1


def test_errors_and_counts_survive_the_way_through_waiting(sql):
    orders = limited(group_limit=2)
    orders.send_batch(range(3), group="a")
    message, other = orders.read(qty=9)
    orders.retry({message.receipt: 3600}, errors={message.receipt: "too busy"})
    assert bodies(orders.read(qty=9)) == [2]
    an_hour_passes()
    assert orders.read(qty=9) == []
    orders.archive(other)

    [again] = orders.read(qty=9)
    assert (again.body, again.read_ct, again.attempts) == (0, 2, 1)
    assert sql("SELECT error FROM pgqueue_deferred WHERE id = %s", [message.id]) == [("too busy",)]


# Fairness


@pytest.mark.parametrize(
    ("limits", "heads"),
    [({"group_limit": 3}, 3), ({"group_limit": 2, "limit": 1}, 2), ({"limit": 2}, 1)],
)
def test_a_new_group_waits_for_the_heads_of_the_others_however_deep_they_are(limits, heads):
    orders = limited(**limits)
    for group, depth in (("a", 20_000), ("b", 60), ("c", 60)):
        orders.send_batch(range(depth), group=group)
    for _ in range(30):
        orders.archive(orders.read())
    orders.send("new", group="new")

    before = 0
    while bodies(messages := orders.read()) != ["new"]:
        orders.archive(messages)
        before += 1

    assert before <= 3 * heads


@pytest.mark.parametrize("limits", [{"group_limit": 3}, {"group_limit": 2, "limit": 4}])
def test_groups_have_the_same_share_however_deep_they_are(limits):
    orders = limited(**limits)
    for group, depth in (("a", 5_000), ("b", 60), ("c", 60)):
        orders.send_batch(range(depth), group=group)

    delivered: list[str | None] = []
    while len(delivered) < 90:
        messages = orders.read(qty=2)
        delivered += groups(messages)
        orders.archive(messages)

    for group in "abc":
        assert abs(delivered.count(group) - 30) <= 6
