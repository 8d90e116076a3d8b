"""Unique keys in two sessions, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from tests.actors import begin, call, commit, execute, rollback
from tests.conftest import run_sql
from tests.engine.send.test_once import bodies
from tests.waiting import until


def is_waiting(future: Any) -> bool:
    assert not future.done()
    return bool(run_sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@pytest.mark.parametrize(("end", "left"), [(commit, ["one"]), (rollback, ["two"])])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("until_", ["started", "done", 60])
@pytest.mark.parametrize("batch", [False, True])
def test_a_send_at_the_same_time_waits_for_the_first(
    committed_orders, actors, end, left, ended, until_, batch, sql
):
    options = {"until": until_}
    if ended:
        committed_orders.send("ended", unique="k", **options)
        committed_orders.archive(committed_orders.read())
        sql("UPDATE pgqueue_claim SET until = statement_timestamp()")
    first, second = actors(2)
    first.do(begin)
    first_id = first.do(call, "send", "orders", "one", unique="k", **options)
    assert first_id.conflict is None

    future = (
        second.start(call, "send_batch", "orders", ["two"], unique=["k"], **options)
        if batch
        else second.start(call, "send", "orders", "two", unique="k", **options)
    )
    until(lambda: is_waiting(future))
    first.do(end)

    result = future.result(timeout=20)
    second_id = result[0] if batch else result
    assert (second_id == first_id) is (end is commit)
    assert second_id.conflict == ("skipped" if end is commit else None)
    assert bodies(committed_orders) == left


@pytest.mark.parametrize(
    ("end", "states"), [(commit, ["REPLACED", "REPLACED"]), (rollback, ["REPLACED"])]
)
def test_replacements_at_the_same_time_follow_each_other(
    committed_orders, actors, end, states, sql
):
    options = {"unique": "k", "on_conflict": "replace"}
    held = committed_orders.send("one", **options)
    first, second = actors(2)
    first.do(begin)
    first.do(call, "send", "orders", "two", **options)
    future = second.start(call, "send", "orders", "three", **options)
    until(lambda: is_waiting(future))
    assert committed_orders.send("skipped", unique="k") == held, "a duplicate waits for nobody"
    assert committed_orders.read() == [], "what is being replaced is not delivered"

    first.do(end)

    assert future.result(timeout=20).conflict == "replaced"
    assert bodies(committed_orders) == ["three"]
    archived = sql("SELECT state FROM pgqueue_archive")
    assert [state for (state,) in archived] == states


@pytest.mark.parametrize(("until_", "left"), [("started", ["two"]), ("done", [])])
def test_a_reader_that_has_the_message_first_wins(committed_orders, actors, until_, left):
    reader, sender = actors(2)
    options = {"unique": "k", "until": until_, "on_conflict": "replace"}
    first = committed_orders.send("one", **options)
    reader.do(begin)
    [message] = reader.do(call, "read", "orders", in_transaction=True)

    second = sender.start(call, "send", "orders", "two", **options).result(timeout=10)

    assert second.conflict == ("skipped" if until_ == "done" else None)
    reader.do(commit)
    assert bodies(committed_orders) == left
    assert committed_orders.archive(message.receipt) == [first]


def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock(committed_orders, actors):
    first, second = actors(2)
    first.do(begin)
    keys = ["a", "b", "c"]
    options = {"until": "done", "on_conflict": "replace"}
    first.do(call, "send_batch", "orders", [1, 2], unique=["b", "a"], **options)
    future = second.start(call, "send_batch", "orders", [3, 4, 5], unique=keys[::-1], **options)
    until(lambda: is_waiting(future))

    first.do(call, "send_batch", "orders", [6], unique=["c"], **options)
    first.do(commit)

    assert [each.conflict for each in future.result(timeout=20)] == ["replaced"] * 3
    assert bodies(committed_orders) == [3, 4, 5]


def test_maintenance_leaves_a_key_that_is_claimed_anew(committed_orders, actor, sql):
    committed_orders.send("one", unique="k", until="done")
    committed_orders.archive(committed_orders.read())
    sql("UPDATE pgqueue_claim SET until = statement_timestamp()")
    actor.do(begin)
    second = actor.do(call, "send", "orders", "two", unique="k", until="done")

    assert committed_orders.maintain().keys == 0

    actor.do(commit)
    assert committed_orders.send("three", unique="k") == second


def test_a_transaction_with_one_snapshot_never_claims_a_key_twice(committed_orders, actors):
    first, second = actors(2)
    first.do(begin)
    first.do(execute, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    first.do(execute, "SELECT 1")
    second.do(call, "send", "orders", "one", unique="k", until="done")

    with pytest.raises(OperationalError, match="could not serialize access"):
        first.do(call, "send", "orders", "two", unique="k", until="done")

    first.do(rollback)
    assert bodies(committed_orders) == ["one"]
