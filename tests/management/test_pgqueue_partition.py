"""``pgqueue_partition``."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import CommandError
from django.db import connection

from django_pgqueue.maintenance import bounds
from django_pgqueue.models import Message, Queue
from tests.management.calling import call, call_json


def interval() -> dt.timedelta | None:
    return Queue.objects.get(name="orders").partition_interval


def test_a_queue_gets_partitions_and_then_others(committed_orders):
    committed_orders.send_batch([1, 2, 3])

    said = call("pgqueue_partition", "orders", "--interval", "1d")
    assert said.out == "Queue 'orders' now has partitions of 1 day, 0:00:00.\n"
    assert interval() == dt.timedelta(days=1)

    said = call("pgqueue_partition", "orders", "--interval", "1h")
    assert said.out == "Queue 'orders' now has partitions of 1:00:00.\n"
    assert interval() == dt.timedelta(hours=1)
    assert committed_orders.metrics().ready == 3


def test_the_same_can_be_had_as_json(committed_orders):
    assert call_json("pgqueue_partition", "orders", "--interval", "90") == {
        "queue": "orders",
        "changed": True,
        "was": None,
        "partition_interval": 90.0,
    }
    assert call_json("pgqueue_partition", "orders", "--interval", "90s")["changed"] is False
    assert call_json("pgqueue_partition", "orders", "--interval", "2m") == {
        "queue": "orders",
        "changed": True,
        "was": 90.0,
        "partition_interval": 120.0,
    }


def test_a_terminal_shows_how_far_it_is(committed_orders):
    committed_orders.send_batch([1, 2, 3])

    said = call("pgqueue_partition", "orders", "--interval", "1d", terminal=True)

    assert "rows checked" in said.err
    assert "rows" not in said.out


def test_partitions_are_for_good(committed):
    Message.objects.create_queue("orders", partition_interval=60)

    with pytest.raises(CommandError, match="is partitioned and cannot be unpartitioned"):
        call("pgqueue_partition", "orders", "--cancel")

    assert interval() == dt.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["orders"], "one of the arguments --interval --cancel is required"),
        (["orders", "--cancel", "--interval", "1d"], "not allowed with"),
        (["orders", "--interval", "daily"], "'daily' is not a duration"),
        (["orders", "--interval", "0"], "partition_interval must be at least a second"),
        (["nowhere", "--cancel"], "There is no queue 'nowhere'"),
    ],
)
def test_an_invalid_conversion_is_refused(committed_orders, arguments, words):
    with pytest.raises(CommandError, match=words):
        call("pgqueue_partition", *arguments)

    assert interval() is None


def test_ctrl_c_during_a_conversion_says_how_to_continue_or_cancel(committed_orders, monkeypatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bounds, "validate_bound", interrupt)
        with pytest.raises(CommandError, match=r"again to continue, or with --cancel") as stopped:
            call("pgqueue_partition", "orders", "--interval", "1d")

    assert stopped.value.returncode == 130
    assert begun()
    assert committed_orders.send(1)
    said = call("pgqueue_partition", "orders", "--cancel")
    assert said.out == "Queue 'orders' has no partitions by time.\n"
    assert not begun()
    call("pgqueue_partition", "orders", "--interval", "1d")
    assert interval() == dt.timedelta(days=1)


def begun() -> bool:
    with connection.cursor() as cursor:
        return bool(bounds.find_bounds(cursor, Queue.objects.get(name="orders").pk))
