"""Priorities: higher ones first, however many messages have lower ones."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.engine.plans.plans import watched
from tests.messages import bodies


def test_a_read_goes_through_all_priorities_from_the_highest_down(orders):
    for priority in (0, -100, 100, 7, -7, 100):
        orders.send(priority, priority=priority)

    messages = orders.read(qty=10)

    assert bodies(messages) == [100, 100, 7, 0, -7, -100]
    assert messages[0].id < messages[1].id


@pytest.mark.parametrize("analyzed", [False, True])
def test_lower_priorities_in_any_number_cost_a_read_nothing(orders, sql, analyzed):
    for priority in range(-100, 100):
        orders.send_batch([0] * 100, priority=priority)
    orders.send_batch(["urgent"] * 5, priority=100)
    if analyzed:
        sql("ANALYZE pgqueue_ready")

    with watched(connection) as plans:
        messages = orders.read(qty=5)

    assert bodies(messages) == ["urgent"] * 5
    for plan in plans:
        plan.check(rows=50, buffers=500)
