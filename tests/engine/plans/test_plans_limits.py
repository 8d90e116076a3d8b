"""In a queue with limits, the cost of an operation does not grow with other messages and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.models import BoundQueue, Message, Queue
from tests.conftest import run_sql
from tests.engine.plans.plans import watched
from tests.engine.plans.test_plans_features import TABLES, begin_all_groups, rows_read

QTY = 10
#: Messages in one group, and groups with one message each.
DEEP, GROUPS = 50_000, 5_000
#: Messages that metrics count.
COUNTED = 1000

IN_GROUPS = {"group_limit": 3}
RATES = {"group_rate": "1/h", "group_burst": 3}
OF_ALL = {"group_limit": 3, "limit": 1000, "rate": "1000/s", "burst": 1000}


@pytest.fixture
def crowded(db: None, limits: dict[str, Any], analyzed: str) -> BoundQueue:
    """Every group has its heads; those of the deep group are first."""
    run_sql(f"TRUNCATE {TABLES}")
    Message.objects.create_queue("orders")
    Queue.objects.filter(name="orders").update(**limits)
    orders = BoundQueue("orders")
    if analyzed == "when there was nothing":
        run_sql(f"ANALYZE {TABLES}")
    orders.send_batch([0] * DEEP, group="deep", priority=1)
    orders.send_batch([0] * GROUPS, group=[f"g{n}" for n in range(GROUPS)])
    begin_all_groups()
    if analyzed == "now":
        run_sql(f"ANALYZE {TABLES}")
    return orders


EVERY = pytest.mark.parametrize(
    ("limits", "analyzed"),
    [
        (IN_GROUPS, "when there was nothing"),
        (IN_GROUPS, "now"),
        (RATES, "when there was nothing"),
        (RATES, "now"),
        (OF_ALL, "when there was nothing"),
        (OF_ALL, "now"),
    ],
)


@pytest.mark.slow
@EVERY
def test_an_operation_costs_its_batch(crowded, limits):
    def costs(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = rows_read()
        with watched(connection) as plans:
            found = operation(*args, **kwargs)
        for plan in plans:
            plan.check(rows=100 * QTY, buffers=300 * QTY)
        # Each statement is measured once more before it runs, and triggers count here only.
        assert rows_read() - before < 200 * QTY
        return found

    messages = costs(crowded.read, qty=QTY)
    assert [m.group_key for m in messages].count("deep") == 3
    costs(crowded.retry, {message.receipt: 0 for message in messages[:2]})
    costs(crowded.archive, messages[2:])
    costs(crowded.send_batch, [0] * QTY, group="deep")
    costs(crowded.send, "x", group="new")
    assert len(costs(crowded.read, qty=QTY)) == QTY
    costs(crowded.next_due)


@pytest.mark.slow
@EVERY
def test_reasons_cost_what_is_asked_for(crowded, limits, settings):
    """Messages wait in all groups, whose heads are ready, and in the deep one."""
    settings.PGQUEUE = {"EXACT_COUNT_LIMIT": COUNTED}
    crowded.send_batch([0] * 4 * GROUPS, group=[f"g{n % GROUPS}" for n in range(4 * GROUPS)])
    begin_all_groups()
    crowded.send_batch([0] * GROUPS, delay=3600)
    later = crowded.send("later", delay=60, group="deep")

    with watched(connection) as plans:
        found = crowded.peek(qty=QTY, blocked=True)
        wait = crowded.why(later)
    for plan in plans:
        plan.check(rows=200 * QTY, buffers=300 * QTY)

    assert len(found) == QTY
    behind = "group" if limits is RATES else "group_limit"
    assert {message.wait.reason for message in found} <= {behind, "group_rate"}
    assert wait.reason == "scheduled"

    with watched(connection) as plans:
        metrics = crowded.metrics()
        Message.objects.metrics_all()
    for plan in plans:
        plan.check(rows=30 * COUNTED, buffers=100 * COUNTED)

    assert "blocked" in metrics.estimated
    assert sum(metrics.blocked.values()) > COUNTED
