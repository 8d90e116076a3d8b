"""History: minutes are folded into hours, and old hours are deleted."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils.timezone import now

from django_pgqueue.history import keep as keeping
from django_pgqueue.models import History, Message, Queue, queue
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)


def put(ago: dt.timedelta, process_id: int = 7, seconds: int = 60, **values: Any) -> History:
    """A row of history for the queue ``orders``, of this age."""
    bucket = (now() - ago).replace(second=0, microsecond=0)
    if seconds == 3600:
        bucket = bucket.replace(minute=0)
    return History.objects.create(
        queue=Queue.objects.get(name="orders"),
        bucket=bucket,
        seconds=seconds,
        process_id=process_id,
        **values,
    )


def minutes(number: int) -> dt.timedelta:
    return dt.timedelta(minutes=number)


def keep() -> None:
    Message.objects.maintain_all()


def test_a_sample_stores_depth_and_sends_of_each_queue(committed_orders):
    queue("idle").create()
    keep()
    committed_orders.send_batch([1, 2, 3])
    run_sql("SELECT pg_stat_force_next_flush()")

    keep()

    assert sum(row.sent for row in History.objects.filter(queue__name="orders")) == 3
    row = History.objects.filter(queue__name="orders").latest("bucket")
    assert (row.depth, row.total) == (3, 3)
    assert row.oldest is not None
    # The time at which counting starts.
    assert History.objects.filter(queue__name="idle").count() == 1


def test_a_queue_where_nothing_happens_has_no_further_rows(committed_orders):
    put(minutes(50), process_id=0, total=0, depth=0)

    keep()

    assert History.objects.count() == 1


def test_rows_of_processes_become_one_once_none_writes_to_the_minute(committed_orders):
    for process in (0, 7, 8):
        put(minutes(6), process, completed=2, busy=0.5, waits={"0": 1}, runs={"4": 1, "5": process})
    fresh = put(minutes(1), completed=5)

    keep()

    [row] = History.objects.filter(bucket__lt=fresh.bucket)
    assert (row.process_id, row.completed, row.busy) == (0, 6, 1.5)
    assert (row.waits, row.runs) == ({"0": 3}, {"4": 3, "5": 15})
    assert row.by_process == {"7": 2, "8": 2}
    assert History.objects.filter(process_id=7, bucket=fresh.bucket).exists()


def test_minutes_become_an_hour_when_it_has_been_over_for_one(committed_orders):
    hour = now().replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=3)
    ago = now() - hour
    put(ago, 0, seconds=3600, completed=1, total=5)  # an hour that was partly folded before
    put(ago - minutes(2), 7, completed=2, depth=9, oldest=3.5)
    merged = {"by_process": {"7": 3, "9": 1}}
    put(ago - minutes(3), 0, completed=4, sent=3, depth=1, total=8, **merged)

    keep()

    row = History.objects.get(bucket__lt=now() - dt.timedelta(hours=2))
    assert (row.bucket, row.seconds, row.process_id) == (hour, 3600, 0)
    assert (row.completed, row.sent, row.depth, row.oldest, row.total) == (7, 3, 9, 3.5, 8)
    assert row.by_process == {"7": 5, "9": 1}


def test_the_last_hour_stays_in_minutes(committed_orders):
    put(minutes(59), 0, completed=1)

    keep()

    assert History.objects.get(completed=1).seconds == 60


def test_an_hour_of_many_queues_is_folded_in_batches(committed_orders, monkeypatch):
    monkeypatch.setattr(keeping, "FOLDED", 1)
    for number in range(4):
        put(dt.timedelta(hours=3 + number), completed=1)
        put(dt.timedelta(hours=3 + number) - minutes(1), completed=1)

    keep()

    old = History.objects.filter(bucket__lt=now() - dt.timedelta(hours=2))
    assert set(old.values_list("seconds", flat=True)) == {3600}
    assert sum(row.completed for row in old) == 8


def test_old_hours_go_and_sooner_where_queues_are_many(committed_orders, monkeypatch):
    put(dt.timedelta(days=15), 0, seconds=3600)
    put(dt.timedelta(days=13), 0, seconds=3600)
    put(dt.timedelta(hours=5), 0, seconds=3600)
    keep()
    kept = History.objects.filter(seconds=3600).count()
    monkeypatch.setattr(keeping, "MOST_HOURS", 10)

    keep()

    assert kept == 2
    assert History.objects.filter(seconds=3600).count() == 1


def test_history_that_is_turned_off_is_not_kept(committed_orders, settings):
    settings.PGQUEUE = {"HISTORY_SECONDS": None}
    committed_orders.send(1)

    keep()

    assert not History.objects.exists()


def test_the_history_of_a_dropped_queue_goes_with_it(committed_orders):
    put(minutes(5))

    Message.objects.drop_queue("orders")

    assert not History.objects.exists()
