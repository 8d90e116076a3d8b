"""A reader leases its own deliveries for longer, and takes back followers that were set back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from django_pgqueue.engine.groups.heads import set_back
from django_pgqueue.engine.settle.settling import hold
from django_pgqueue.models import Message
from django_pgqueue.types import Receipt, Settled
from tests.conftest import run_sql
from tests.engine.plans.plans import watched
from tests.leasing import run_out

pytestmark = pytest.mark.django_db(transaction=True)


def held(messages: list[Message], more: int = 0) -> Settled:
    receipts = [message.receipt for message in messages]
    return hold(Message.objects.resolve("orders").opened, receipts, 60, more=more)


def lapse() -> None:
    """Let all leases run out, and let a reader set the followers back."""
    run_out()
    set_back(Message.objects.resolve("orders").opened)


def test_deliveries_are_leased_again_and_counted(committed_orders):
    committed_orders.send_batch([1, 2])
    messages = committed_orders.read(qty=2, vt=0)

    assert sorted(held(messages, more=1)) == [message.id for message in messages]

    assert committed_orders.read(qty=2) == []
    again = [Receipt(r.id, r.read_ct + 1, r.read_at) for r in (m.receipt for m in messages)]
    assert held(messages).lost == [message.receipt for message in messages]
    assert sorted(committed_orders.archive(again)) == [message.id for message in messages]


def test_followers_are_taken_back_but_for_the_group_whose_head_others_had(committed_orders):
    groups = ["a", "b", "c"] * 3
    committed_orders.send_batch(list(range(9)), group=groups)
    messages = committed_orders.read_grouped(qty=9, vt=60)
    lapse()
    [other] = committed_orders.read(vt=60)

    kept = held(messages)

    assert {message.group for message in messages if message.id in kept} == {"b", "c"}
    assert len(kept) == 6
    assert {receipt.id for receipt in kept.lost} == {  # type: ignore[union-attr]
        message.id for message in messages if message.group == other.group
    }
    assert committed_orders.read(qty=9) == []
    assert len(committed_orders.archive(messages)) == 6
    committed_orders.archive(other)
    left = committed_orders.read_grouped(qty=9)
    assert [message.group for message in left] == [other.group] * 2


def test_followers_are_taken_back_with_their_last_errors(committed_orders):
    committed_orders.send_batch([1, 2, 3], group="a")
    failed = [message.receipt for message in committed_orders.read_grouped(qty=3, vt=60)]
    committed_orders.retry(
        dict.fromkeys(failed, 0), errors=dict.fromkeys(failed, "the bank is down")
    )
    messages = committed_orders.read_grouped(qty=3, vt=60)
    lapse()

    assert len(held(messages)) == 3

    assert run_sql("SELECT error FROM pgqueue_deferred") == [("the bank is down",)] * 3


def test_holding_a_batch_costs_its_messages(committed_orders):
    run_sql("ANALYZE pgqueue_waiting, pgqueue_group, pgqueue_deferred")
    committed_orders.send_batch([0] * 20_000, group=[f"g{n % 5000}" for n in range(20_000)])
    committed_orders.read_grouped_rr(qty=5_000, vt=600)
    committed_orders.read_grouped(qty=1)  # every group has a head now
    run_out()
    messages: list[Any] = committed_orders.read_grouped(qty=100, vt=60)
    lapse()

    with transaction.atomic(), watched(connection) as plans:
        assert len(held(messages)) == 100

    for plan in plans:
        plan.check(rows=500, buffers=6_000)
