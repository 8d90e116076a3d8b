"""The consumers' history by the minute, written without a row per message."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.db import DatabaseError
from django.test import override_settings

from django_pgqueue.history import note
from django_pgqueue.models import History, Message, Queue, queue
from tests.actors import begin, execute, rollback
from tests.waiting import until
from tests.worker.consuming import outcomes

pytestmark = pytest.mark.django_db(transaction=True)


def counted(name: str = "orders") -> dict[str, int]:
    """The sums of a queue's history rows."""
    rows = History.objects.filter(queue__name=name)
    fields = ("completed", "retried", "failed", "dead_lettered", "expired", "lost")
    return {f: n for f in fields if (n := sum(getattr(row, f) for row in rows))}


def times(kind: str, name: str = "orders") -> int:
    return sum(sum(getattr(row, kind).values()) for row in History.objects.filter(queue__name=name))


def test_outcomes_waits_and_run_times_are_counted(committed_orders, drain):
    committed_orders.send_batch(["done"] * 20 + ["again", "no"])

    def handle(message: Message) -> None:
        if message.body == "again" and not message.attempts:
            message.nack(0)
        if message.body == "no":
            message.reject("no")

    drain(handle)

    assert counted() == {"completed": 21, "retried": 1, "failed": 1}
    assert (times("runs"), times("waits")) == (23, 22)
    assert History.objects.count() <= 2  # another minute may have started


def test_what_failed_for_good_counts_as_dead_lettered_where_it_goes_there(committed, drain):
    Message.objects.create_queue("orders", dead_letter_queue=queue("dead").create())
    queue("orders").send(1)

    drain(lambda message: message.reject("no"))

    assert counted() == {"dead_lettered": 1}


def test_a_delay_is_no_wait(committed_orders, consume):
    sent = committed_orders.send(1, delay=1.1)
    consumer = consume(lambda message: None)
    until(lambda: sent in outcomes())

    consumer.stop()

    [row] = History.objects.exclude(waits={})
    assert all(int(number) < 0 for number in row.waits)  # below one second


def test_each_write_replaces_the_one_before(committed_orders, consume):
    with override_settings(PGQUEUE={"HISTORY_SECONDS": 0}):
        consumer = consume(lambda message: None, options={"heartbeat": 0.01})
        for number in range(1, 4):
            committed_orders.send(number)
            until(lambda number=number: counted().get("completed") == number)

        consumer.stop()

    assert counted() == {"completed": 3}
    assert History.objects.count() <= 2


def test_a_failure_is_announced_once_and_its_counts_are_written_later(
    committed_orders, consume, events, monkeypatch
):
    tries = []

    def fail(*args: object) -> None:
        tries.append(args)
        raise DatabaseError("history is full")

    monkeypatch.setattr(note, "statement", fail)
    sent = committed_orders.send(1)
    with override_settings(PGQUEUE={"HISTORY_SECONDS": 0}):
        consumer = consume(lambda message: None, options={"heartbeat": 0.01})
        until(lambda: sent in outcomes() and len(tries) > 2)
        monkeypatch.undo()

        consumer.stop()

    told = [kw for name, kw in events if name == "database_failed"]
    assert [kw["operation"] for kw in told] == ["history"]
    assert counted() == {"completed": 1}


def test_a_locked_history_holds_nothing_up(committed_orders, drain, actor):
    actor.do(begin)
    actor.do(execute, "LOCK TABLE pgqueue_history")
    sent = committed_orders.send(1)

    drain(lambda message: None)

    actor.do(rollback)
    assert sent in outcomes()
    assert History.objects.count() == 0


@dataclass(eq=False)
class Subscription:
    """A subscription to the queue with an id, which completed a message."""

    pk: int
    dead_letter_queue_id: None = None

    @property
    def queue(self) -> Subscription:
        return self

    def tally(self) -> dict[str, float]:
        return {"completed": 1}


def test_a_queue_that_was_dropped_is_left_out(committed_orders):
    kept, dropped = Subscription(Queue.objects.get().pk), Subscription(999_999)

    note.Recorder("default", [kept, dropped]).write(7)

    assert History.objects.values_list("queue__name", flat=True).get() == "orders"


def test_history_can_be_turned_off(committed_orders, drain):
    committed_orders.send(1)

    with override_settings(PGQUEUE={"HISTORY_SECONDS": None}):
        consumer = drain(lambda message: None)

    assert consumer.subscription.counts.completed == 1
    assert consumer.subscription.counts.tally()["completed"] == 1
    assert not History.objects.exists()


def test_one_consumer_also_samples_every_queue(committed_orders, consume):
    Message.objects.create_queue("mails")
    queue("mails").send_batch([1, 2])

    with override_settings(PGQUEUE={"MAINTENANCE_SECONDS": 0.05}):
        consume(lambda message: None)

        until(lambda: History.objects.filter(queue__name="mails", depth=2).exists())
