"""What the operations of groups cost, whatever stands in the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.models import BoundQueue, Message
from tests.queries.plans import watched

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def crowded(db: None, sql: Sql) -> BoundQueue:
    """5,000 groups of one message, and 5,000 messages behind the blocked head of one."""
    # What an earlier test rolled back is still there, dead.
    sql("TRUNCATE pgqueue_ready, pgqueue_deferred, pgqueue_waiting, pgqueue_group, pgqueue_recheck")
    Message.objects.create_queue("orders")
    orders = BoundQueue("orders")
    orders.send_batch([0] * 5_000, group="blocked")
    orders.read(vt=3600)
    orders.send_batch([0] * 5_000, group=[f"g{n}" for n in range(5_000)])
    return orders


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_read_and_its_promotion_touch_their_batch_only(
    crowded: BoundQueue, sql: Sql, analyzed: bool
) -> None:
    if analyzed:
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group")

    with watched(connection) as plans:
        messages = crowded.read(qty=100)

    assert len(messages) == 100
    for plan in plans:
        # One promotion takes up a thousand rechecks.
        plan.check(rows=5_000, buffers=60_000)


def begin_all_groups() -> None:
    """As readers outside a transaction do, in bigger batches."""
    everything = {"batch": 100_000, "groups": 100_000, "alone": True}
    Message.objects._run("promote", "orders", None, everything)


@pytest.mark.parametrize("read", ["read", "read_grouped", "read_grouped_rr"])
@pytest.mark.parametrize("analyzed", ["never", "when there was no group", "now"])
def test_a_grouped_read_costs_its_batch(
    crowded: BoundQueue, sql: Sql, read: str, analyzed: str
) -> None:
    if analyzed == "when there was no group":
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group")
    crowded.send_batch([1] * 5_000, group=[f"g{n}" for n in range(5_000)])
    begin_all_groups()
    if analyzed == "now":
        sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group, pgqueue_ready")

    with watched(connection) as plans:
        messages = getattr(crowded, read)(qty=20)

    assert len(messages) == 20
    for plan in plans:
        plan.check(rows=350, buffers=2_500)


def rows_read(sql: Sql) -> int:
    """How many rows of the groups' tables this transaction read so far, in triggers too."""
    [(rows,)] = sql(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
        " WHERE relname IN ('pgqueue_group', 'pgqueue_waiting', 'pgqueue_ready',"
        " 'pgqueue_deferred')"
    )
    return int(rows)


@pytest.mark.parametrize("read", ["read", "read_grouped"])
def test_what_comes_after_an_ack_costs_its_batch_though_plans_are_old(
    orders: BoundQueue, sql: Sql, read: str
) -> None:
    sql("ANALYZE pgqueue_waiting, pgqueue_recheck, pgqueue_group, pgqueue_ready, pgqueue_deferred")
    for _ in range(10):  # the triggers' plans are made, and kept
        orders.send_batch([0] * 3, group="a")
        orders.archive(getattr(orders, read)(qty=2))
    groups = [f"g{n}" for n in range(5_000)]
    orders.send_batch([0] * 15_000, group=groups * 3)
    begin_all_groups()
    messages = getattr(orders, read)(qty=100)
    before = rows_read(sql)

    orders.archive(messages)

    assert len(messages) == 100
    # Each message, the row of its group and the one that follows it: a few times each.
    assert rows_read(sql) - before <= 100 * 8
    assert orders.metrics().ready >= 5_000 - 100


def test_setting_followers_back_costs_its_batch(crowded: BoundQueue, sql: Sql) -> None:
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'")
    messages = crowded.read_grouped(qty=20)
    assert {message.group for message in messages} == {"blocked"}
    sql("UPDATE pgqueue_deferred SET vt = statement_timestamp() - interval '1 second'")
    crowded.set_vt(messages[0], 60)

    with watched(connection) as plans:
        crowded.read(qty=20)

    set_back = [plan for plan in plans if "back they go into the line" in plan.statement]
    assert set_back
    for plan in set_back:
        plan.check(rows=250, buffers=2_500)
