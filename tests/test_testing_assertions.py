"""Helpers that inspect sent messages, and helpers that let time pass."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import transaction

from django_pgqueue import consumer, queue, schedule
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.models import Message, Queue, Schedule
from django_pgqueue.testing import drain
from django_pgqueue.testing.assertions import (
    assert_enqueued,
    assert_not_enqueued,
    captured_messages,
)
from django_pgqueue.testing.travelling import travel
from tests.conftest import run_sql
from tests.tasks.framework import needs_tasks

HOUR = dt.timedelta(hours=1)


def test_a_message_is_found_by_its_attributes(orders):
    pk = orders.send({"order": 7, "total": 3}, headers={"a": 1, "b": 2}, priority=5, group="g")
    orders.send({"order": 8})

    for which in (
        {"body": {"order": 7, "total": 3}},
        {"contains": {"order": 7}},
        {"headers": {"a": 1}},
        {"priority": 5},
        {"group": "g"},
    ):
        assert [m.pk for m in assert_enqueued("orders", **which, count=1)] == [pk]
    assert len(assert_enqueued("ORDERS")) == 2
    assert_not_enqueued("orders", body={"order": 7})


def test_bulk_sends_are_seen(orders, pgqueue):
    pgqueue(COPY_THRESHOLD=2)
    orders.send_batch([1, 2, 3])
    Message.objects.bulk_create([Message(queue=Queue.objects.get(name="orders"), body=4)])

    assert [m.body for m in assert_enqueued("orders", count=4)] == [1, 2, 3, 4]


def test_null_is_a_body_too(orders):
    orders.send(None)

    assert_enqueued("orders", body=None, count=1)


def test_delayed_and_leased_messages_are_in_the_queue_and_archived_ones_are_not(orders):
    orders.send(1)
    orders.read()
    orders.send(2, delay=60)
    orders.archive(orders.send(3))

    assert [m.body for m in assert_enqueued("orders")] == [1, 2]


def test_a_failed_assertion_shows_the_messages_in_the_queue(orders):
    with pytest.raises(AssertionError, match=r"found 0\. The queue is empty"):
        assert_enqueued("orders")

    orders.send_batch([{"order": n} for n in range(12)])

    with pytest.raises(AssertionError) as raised:
        assert_enqueued("orders", contains={"order": 77})
    said = str(raised.value)
    assert said.startswith("expected a matching message in queue 'orders', found 0. The queue has:")
    assert "PENDING priority=0 group=None body={'order': 9} headers=None" in said
    assert said.endswith("and more messages")
    with pytest.raises(
        AssertionError, match="expected 2 matching messages in queue 'orders', found 12"
    ):
        assert_enqueued("orders", count=2)
    with pytest.raises(AssertionError, match="expected 0 matching messages"):
        assert_not_enqueued("orders")


def test_an_unknown_queue_is_an_error_of_its_own(db):
    with pytest.raises(QueueNotFound):
        assert_enqueued("missing")


def test_arguments_are_a_tasks(orders):
    with pytest.raises(TypeError, match="pass the task"):
        assert_enqueued("orders", args=[1])


def test_no_message_is_a_count_of_its_own(orders):
    with pytest.raises(TypeError, match="use assert_enqueued"):
        assert_not_enqueued("orders", count=3)


@needs_tasks
def test_a_task_is_found_by_its_arguments(db, settings):
    from tests.tasks.sample import add, noop

    with pytest.raises(TypeError, match="sends no messages"):
        assert_enqueued(add)
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.tasks.PgQueueBackend"}}
    queue("default").create()
    result = add.enqueue(1, two=2)
    noop.enqueue(1)

    [message] = assert_enqueued(add, args=[1], kwargs={"two": 2}, count=1)
    assert str(message.pk) == result.id
    assert_not_enqueued(add, args=[2])


def test_what_a_block_sends_is_captured(orders):
    queue("mails").create()
    orders.send("before")

    with captured_messages() as sent, captured_messages("mails") as mails:
        orders.send_batch([1, 2])
        queue("mails").send(3)
        orders.archive(orders.read())
        assert sent == []
    orders.send("after")

    assert [(m.queue.name, m.body) for m in sent] == [("orders", 1), ("orders", 2), ("mails", 3)]
    assert [m.body for m in mails] == [3]


def test_the_first_message_of_all_is_captured(orders, sql):
    sql("ALTER SEQUENCE pgqueue_message_id_seq RESTART WITH 1000000000")

    with captured_messages() as sent:
        orders.send(1)

    assert [m.pk for m in sent] == [1000000000]


def test_what_is_rolled_back_was_not_sent(orders):
    with captured_messages() as sent:
        with pytest.raises(RuntimeError), transaction.atomic():  # noqa: PT012
            orders.send(1)
            raise RuntimeError
        orders.send(2)

    assert [m.body for m in sent] == [2]


def test_an_error_of_the_block_comes_through(orders):
    with pytest.raises(RuntimeError, match="of the block"), captured_messages(handle=True):
        raise RuntimeError("of the block")


def test_what_is_sent_can_be_handled_at_once(orders, own_handlers):
    queue("mails").create()
    handled: list[Any] = []

    @consumer("mails")
    def mail(message: Message) -> None:
        handled.append(("mail", message.body))

    @consumer("orders")
    def charge(message: Message) -> None:
        handled.append(("charge", message.body))
        queue("mails").send(message.body)

    @consumer("not-there")
    def never(message: Message) -> None:
        raise AssertionError

    with captured_messages(handle=True) as sent:
        orders.send(7)
        assert handled == []

    assert handled == [("charge", 7), ("mail", 7)]
    assert [m.queue.name for m in sent] == ["orders", "mails"]
    assert_not_enqueued("orders")


def test_a_delay_passes(orders):
    orders.send(1, delay=3600)
    orders.send(2, delay=3600, group="g")
    orders.send(3, delay=7200)

    assert travel(3599) == 0
    assert orders.read(qty=5) == []
    travel(dt.timedelta(seconds=1))

    assert sorted(m.body for m in orders.read(qty=5)) == [1, 2]


def test_a_planned_retry_and_a_lease_end(orders):
    orders.send_batch([1, 2])
    first, _leased = orders.read(qty=2, vt=600)
    first.nack(delay=300)

    travel(300)
    assert [m.body for m in orders.read(qty=5)] == [1]
    travel(300)
    assert 2 in [m.body for m in orders.read(qty=5)]


def test_the_wait_of_a_rate_ends(orders):
    pk = Queue.objects.get().pk
    run_sql(
        "INSERT INTO pgqueue_group (queue_id, group_key, priority, free_at) "
        "VALUES (%s, 'g', 0, statement_timestamp() + interval '1 hour')",
        [pk],
    )

    travel(3600)

    assert run_sql("SELECT free_at <= clock_timestamp() FROM pgqueue_group") == [(True,)]


def test_a_message_expires(orders):
    orders.send(1, expires=3600)
    orders.send(2)

    travel(3600)

    assert [m.body for m in orders.read(qty=5)] == [2]


def test_a_unique_key_ends(orders):
    first = orders.send(1, unique="k")
    assert orders.send(2, unique="k") == first

    travel(HOUR)

    assert orders.send(3, unique="k") != first


def test_schedules_send_what_became_due(orders, own_handlers):
    found = Queue.objects.get(name="orders")
    Schedule.objects.create(name="each", queue=found, interval=HOUR, body=1, missed="all")
    Schedule.objects.create(name="once", queue=found, interval=HOUR, body=2)
    handled: list[Any] = []

    assert travel(3 * HOUR) == 4

    drain("orders", lambda message: handled.append(message.body))
    assert sorted(handled) == [1, 1, 1, 2]
    assert travel(0) == 0


def test_no_queue_goes_back(orders):
    with pytest.raises(InvalidArgument, match="zero seconds or more"):
        travel(-1)


def test_declared_schedules_send_what_is_due(orders, own_handlers):
    @schedule(every=HOUR, body={"report": 1}, name="hourly")
    @consumer("orders")
    def report(message: Message) -> None:
        reported.append(message.body)

    @schedule(every=HOUR, name="elsewhere")
    @consumer("a-queue-that-this-test-lacks")
    def elsewhere(message: Message) -> None: ...

    reported: list[Any] = []

    assert travel(3599) == 0
    assert travel(1) == 1
    drain("orders")
    assert travel(HOUR) == 1

    assert reported == [{"report": 1}]
    assert list(Schedule.objects.values_list("name", flat=True)) == ["hourly"]


def test_a_declared_schedule_without_a_queue_is_an_error(db, own_handlers):
    schedule(every=HOUR)(print)

    with pytest.raises(InvalidArgument, match="needs a queue"):
        travel(HOUR)
