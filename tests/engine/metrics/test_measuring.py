"""Tests of metrics and metrics_all."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.db import connection
from django.utils import timezone

from django_pgqueue.engine.metrics.measuring import ENOUGH, LEAST_COUNTED
from django_pgqueue.engine.statements import load
from django_pgqueue.models import Message, Queue
from tests.conftest import rolled_back, run_sql
from tests.factories import QueueFactory
from tests.leasing import lease
from tests.waiting import until


def test_an_empty_queue_measures_zero_and_has_no_ages(orders):
    metrics = orders.metrics()

    assert (metrics.queue_name, metrics.length, metrics.ready, metrics.visible) == (
        "orders",
        0,
        0,
        0,
    )
    assert (metrics.in_flight, metrics.delayed, metrics.archived) == (0, 0, 0)
    assert (metrics.oldest_age, metrics.newest_age) == (None, None)
    assert metrics.exact
    assert abs(metrics.scraped_at - timezone.now()) < dt.timedelta(seconds=5)


def test_metrics_tell_where_each_message_stands(orders):
    archived, in_flight, due = orders.send_batch([1, 2, 3])
    orders.send_batch([4, 5])
    orders.send(6, delay=60)
    orders.archive(archived)
    orders.read(qty=2, vt=60)
    orders.set_vt(due, 0)
    Message.objects.send(QueueFactory(), "another queue's")

    metrics = orders.metrics()

    assert (metrics.ready, metrics.in_flight, metrics.delayed) == (2, 1, 1)
    assert (metrics.visible, metrics.length, metrics.archived) == (3, 5, 1)
    assert in_flight


def test_metrics_measure_the_ages_of_what_is_in_the_queue(orders):
    queue = Message.objects.resolve("orders")
    now = timezone.now()
    for age, priority, delay in ((100, 0, 0), (500, 5, 0), (300, -5, 0), (50, 0, 900)):
        Message.objects.create(
            queue=queue,
            enqueued_at=now - dt.timedelta(seconds=age),
            priority=priority,
            scheduled_at=now + dt.timedelta(seconds=delay) if delay else None,
        )

    metrics = orders.metrics()
    assert metrics.oldest_age == pytest.approx(500, abs=5)
    assert metrics.newest_age == pytest.approx(50, abs=5)

    orders.read()  # leases the oldest message
    assert orders.metrics().oldest_age == pytest.approx(500, abs=5)


def test_total_counts_what_was_popped_purged_or_rolled_back_too(committed_orders):
    committed_orders.send_batch([1, 2, 3])
    committed_orders.pop()
    committed_orders.purge()
    with rolled_back():
        committed_orders.send(4)
    committed_orders.send(5)
    connection.close()  # the server adds a session's counts to the statistics when it ends

    # The session ends asynchronously.
    until(lambda: committed_orders.metrics().total == 5)

    assert committed_orders.metrics().length == 1


def test_beyond_the_limit_metrics_estimate_and_say_so(committed_orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 50}
    committed_orders.send_batch(range(600))
    assert committed_orders.metrics().exact is False

    run_sql("ANALYZE pgqueue_message")
    metrics = committed_orders.metrics()

    assert metrics.estimated == ("ready",)
    assert metrics.ready == pytest.approx(600, rel=0.1)
    assert metrics.length == metrics.ready == metrics.visible


def test_of_many_queues_a_long_one_is_counted_less_far_and_estimated(committed_orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": LEAST_COUNTED}
    Message.objects.create_queue("queue-1")
    Message.objects.send_batch("queue-1", range(ENOUGH + 1))

    def send_one(age: int, priority: int) -> None:
        Message.objects.create(
            queue=Message.objects.resolve("orders"),
            enqueued_at=timezone.now() - dt.timedelta(seconds=age),
            priority=priority,
        )

    send_one(age=500, priority=5)
    committed_orders.send_batch(range(300))
    send_one(age=900, priority=0)  # behind the limit of the count
    committed_orders.send_batch(range(300))
    send_one(age=-50, priority=-5)

    measured = {each.queue_name: each for each in Message.objects.metrics_all()}

    long, short = measured["orders"], measured["queue-1"]
    assert (long.exact, short.exact) == (False, True)
    assert long.ready == pytest.approx(603, rel=0.1)
    assert (long.oldest_age, long.newest_age) == pytest.approx((500, -50), abs=5)
    assert short.ready == ENOUGH + 1


def test_delayed_messages_beyond_the_limit_are_estimated_too(committed_orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 50}
    committed_orders.send_batch(range(600), delay=60)
    committed_orders.send_batch(range(10))

    metrics = committed_orders.metrics()

    assert (metrics.exact, metrics.estimated) == (False, ("in_flight", "delayed", "blocked"))
    assert metrics.ready == 10
    assert metrics.length == pytest.approx(610, rel=0.1)
    assert metrics.blocked == {"scheduled": metrics.delayed}


def test_metrics_can_be_written_as_json(orders):
    orders.send(1)

    data = json.loads(json.dumps(orders.metrics().as_dict()))

    assert (data["queue_name"], data["ready"]) == ("orders", 1)
    assert dt.datetime.fromisoformat(data["scraped_at"])


def test_with_more_groups_without_a_head_than_are_looked_at_metrics_are_no_longer_exact(orders):
    looked_at = int(load("places/rechecks"))
    orders.send_batch(range(looked_at), group=[f"group-{n}" for n in range(looked_at)])
    exact = orders.metrics()
    orders.send(1, group="one more")

    measured = [orders.metrics(), *Message.objects.metrics_all()]

    assert (exact.ready, exact.waiting, exact.exact) == (looked_at, 0, True)
    assert all(each.length == looked_at + 1 and not each.exact for each in measured)


def test_the_metrics_of_all_queues_are_those_of_each(db):
    for number in range(12):
        name = f"queue-{number:02}"
        Message.objects.create_queue(
            name,
            unlogged=number % 5 == 1,
            partition_interval=86400 if number % 5 == 2 else None,
        )
        Message.objects.send_batch(name, list(range(number + 1)))
        Message.objects.send(name, "later", delay=60)
        lease(name, qty=1)

    together = Message.objects.metrics_all()

    for all_at_once in together:
        alone = Message.objects.metrics(all_at_once.queue_name)
        for field in ("length", "ready", "in_flight", "delayed", "visible", "exact"):
            assert getattr(all_at_once, field) == getattr(alone, field), field
    assert [m.queue_name for m in together] == [q.name for q in Message.objects.list_queues()]
    assert together[4].oldest_age is not None


# Reasons


def blocked(queue):
    """The numbers of blocked messages by reason, which both operations tell."""
    [one] = [each for each in Message.objects.metrics_all() if each.queue_name == queue.name]
    alone = queue.metrics()
    assert alone.blocked == one.blocked
    return alone.blocked


def test_metrics_tell_why_messages_wait(orders):
    orders.send_batch(range(3), delay=60)
    orders.send(3)
    orders.retry({message.receipt: 60 for message in orders.read()})
    orders.send_batch(range(4), group="a")
    orders.read()
    orders.send(4)

    assert blocked(orders) == {"group": 3, "scheduled": 3, "retry": 1}
    assert list(blocked(orders)) == ["group", "scheduled", "retry"]


def test_of_a_paused_queue_all_readable_messages_are_blocked(orders):
    orders.send_batch(range(2))
    due = orders.send_batch(range(20))
    orders.read(qty=22)
    orders.set_vt(due, 0)
    orders.send_batch(range(3))
    orders.send_batch(range(4), group="a")
    Queue.objects.update(paused=True)

    assert blocked(orders) == {"queue_paused": 27}
    assert orders.metrics().visible == 24


@pytest.mark.parametrize(("limits", "reason"), [({"limit": 2}, "limit"), ({"rate": "1/h"}, "rate")])
def test_metrics_count_what_the_whole_queue_holds_back(orders, limits, reason):
    Queue.objects.update(**limits)
    orders.send_batch(range(5))
    assert blocked(orders) == {}

    taken = len(orders.read(qty=5))

    assert blocked(orders) == {reason: 5 - taken}


def test_metrics_count_what_groups_hold_back(orders):
    Queue.objects.update(group_limit=2)
    for group in "abc":
        orders.send_batch(range(4), group=group)
    orders.read(qty=6)
    orders.group("b").pause()
    orders.group("c").limit(3)

    assert blocked(orders) == {"group_limit": 3, "group_paused": 2}


def test_a_head_that_waits_for_its_slot_counts_for_the_rate_of_its_group(orders):
    Queue.objects.update(group_rate="1/h")
    orders.send_batch(range(4), group="a")
    orders.read(qty=4)

    assert blocked(orders) == {"group_rate": 3}


def test_beyond_the_limit_the_reasons_are_estimated_in_proportion(committed_orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 50}
    committed_orders.send_batch(range(600), group="a")
    committed_orders.read()

    metrics = committed_orders.metrics()

    assert metrics.estimated == ("waiting", "blocked")
    assert metrics.blocked == {"group": metrics.waiting}


def test_the_reasons_of_a_queue_that_holds_nothing_back_are_exact(committed_orders, settings):
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": 50}
    committed_orders.send_batch(range(600))
    committed_orders.send(1, delay=60)

    assert committed_orders.metrics().blocked == {"scheduled": 1}
    assert committed_orders.metrics().estimated == ("ready",)

    Queue.objects.update(paused=True)
    measured = committed_orders.metrics()
    assert measured.estimated == ("ready", "blocked")
    assert measured.blocked["queue_paused"] == measured.ready
