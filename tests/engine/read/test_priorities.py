"""Priorities: higher ones first, however many messages have lower ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.errors import InvalidArgument
from tests.engine.plans.plans import watched

Sql = Callable[..., list[tuple[Any, ...]]]


def test_a_read_goes_through_all_priorities_from_the_highest_down(orders):
    for priority in (0, -100, 100, 7, -7, 100):
        orders.send(priority, priority=priority)

    messages = orders.read(qty=10)

    assert [message.body for message in messages] == [100, 100, 7, 0, -7, -100]
    assert messages[0].id < messages[1].id


@pytest.mark.parametrize("priority", [101, -101, 1.5, True, None, "high"])
def test_a_priority_is_a_whole_number_from_minus_to_plus_a_hundred(orders, priority):
    with pytest.raises(InvalidArgument, match="priority"):
        orders.send(1, priority=priority)


@pytest.mark.parametrize("analyzed", [False, True])
def test_lower_priorities_in_any_number_cost_a_read_nothing(orders, sql, analyzed):
    for priority in range(-100, 100):
        orders.send_batch([0] * 100, priority=priority)
    orders.send_batch(["urgent"] * 5, priority=100)
    if analyzed:
        sql("ANALYZE pgqueue_ready")

    with watched(connection) as plans:
        messages = orders.read(qty=5)

    assert [message.body for message in messages] == ["urgent"] * 5
    for plan in plans:
        plan.check(rows=50, buffers=500)


def test_a_message_that_is_due_again_does_not_wait_behind_higher_ones(orders, sql):
    orders.send("low", priority=-100)
    orders.read(vt=0)
    orders.send_batch(["high"] * 3, priority=100)

    assert "low" in [message.body for message in orders.read(qty=2)]
