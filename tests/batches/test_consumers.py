"""Consumers count the members that end in them, and those that end elsewhere."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_pgqueue.models import Batch, BoundQueue, queue
from django_pgqueue.queues import batch as batch_module
from django_pgqueue.queues.batch import BatchManager, Counted
from django_pgqueue.worker import ticker
from tests.waiting import until
from tests.worker.conftest import consume, drain

__all__ = ["consume", "drain"]


@pytest.fixture
def orders(committed_orders: BoundQueue) -> BoundQueue:
    queue("reports").create()
    return committed_orders


def send(orders: BoundQueue, *bodies: Any, **options: Any) -> Batch:
    with orders.batch(then=queue("reports").message(1)) as batch:
        batch.send_batch(bodies, **options)
    return batch


def is_done(batch: Batch) -> bool:
    batch.refresh_from_db()
    return batch.done_at is not None


def fail(message: Any) -> None:
    raise OSError("no such user")


@pytest.mark.parametrize(
    "function", [lambda message: None, lambda message: message.reject("no"), fail]
)
def test_the_end_of_the_last_member_ends_the_batch_without_a_look(orders, consume, function):
    run = consume(function, max_deliveries=1)
    until(lambda: run.consumer.ticker._look_at > 0)
    batch = send(orders, 1, 2)

    until(lambda: is_done(batch), 5)

    assert batch.looked_at is None


def test_what_a_read_ends_is_counted_without_a_look(orders, consume):
    run = consume(lambda message: None)
    until(lambda: run.consumer.ticker._look_at > 0)
    batch = send(orders, 1, delay=0.5, expires=0.1)

    until(lambda: is_done(batch), 8)

    assert batch.expired == 1


def test_what_ends_elsewhere_is_counted_by_the_next_look(orders, consume, monkeypatch):
    monkeypatch.setattr(ticker, "_LONGEST", 0.5)
    batch = send(orders, 1, delay=60)
    consume(lambda message: None)
    orders.cancel([each.id for each in batch.queue.messages.all()])

    until(lambda: is_done(batch), 10)

    assert batch.cancelled == 1


def test_a_consumer_that_drains_calls_back_before_it_stops(orders, drain):
    with orders.batch(then=orders.message("last")) as batch:
        batch.send_batch([1, 2])
    bodies: list[Any] = []

    drain(lambda message: bodies.append(message.body), max_workers=1)

    assert bodies == [1, 2, "last"]
    assert is_done(batch)


def test_an_error_in_a_count_is_told_and_the_next_look_counts(orders, consume, monkeypatch, caplog):
    batch = send(orders, 1)
    monkeypatch.setattr(ticker, "_LONGEST", 0.5)
    monkeypatch.setattr(batch_module, "_EVERY", dt.timedelta(0))
    count, errors = BatchManager.count_some, [OSError("the disk is full")]

    def count_but_once(self: BatchManager, *args: Any, **options: Any) -> Counted:
        if errors:
            raise errors.pop()
        return count(self, *args, **options)

    monkeypatch.setattr(BatchManager, "count_some", count_but_once)
    consume(lambda message: None)

    until(lambda: is_done(batch), 10)

    assert "the disk is full" in caplog.text
