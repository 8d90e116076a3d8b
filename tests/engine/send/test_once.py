"""Unique keys: the second send of a key returns the first id and adds nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_pgqueue.models import BoundQueue, Message
from tests.actors import begin, call, commit, rollback

Sql = Callable[..., list[tuple[Any, ...]]]


def test_the_second_send_returns_the_first_id_and_adds_nothing(orders):
    first = orders.send("one", unique="k")

    assert orders.send("two", unique="k", group="g", delay=5) == first
    [message] = orders.read(qty=10)
    assert (message.id, message.body) == (first, "one")


def test_a_key_counts_even_when_its_message_is_done(orders):
    first = orders.send("one", unique="k")
    orders.archive(orders.read())

    assert orders.send("two", unique="k") == first
    assert orders.read() == []


def test_other_keys_other_queues_and_no_key_are_free(orders):
    Message.objects.create_queue("mails")

    ids = {
        orders.send(1, unique="k"),
        orders.send(1, unique="K"),
        orders.send(1),
        orders.send(1),
        BoundQueue("mails").send(1, unique="k"),
    }

    assert len(ids) == 5


def test_a_key_is_free_again_after_the_window(db, sql):
    Message.objects.create_queue("orders", unique_window=dt.timedelta(hours=1))
    orders = BoundQueue("orders")
    first = orders.send("one", unique="k")
    sql("UPDATE pgqueue_claim SET until = until - interval '59 minutes'")
    assert orders.send("two", unique="k") == first

    sql("UPDATE pgqueue_claim SET until = until - interval '1 minute'")

    second = orders.send("three", unique="k")
    assert second != first
    assert orders.send("four", unique="k") == second
    assert [message.body for message in orders.read(qty=10)] == ["one", "three"]


def test_keys_that_ran_out_are_swept_by_later_sends(orders, sql):
    for number in range(4):
        orders.send(number, unique=f"old {number}")
    sql("UPDATE pgqueue_claim SET until = statement_timestamp()")

    orders.send(5, unique="new")
    orders.send(6, unique="newer")

    assert sql("SELECT count(*) FROM pgqueue_claim") == [(2,)]


def test_a_key_that_is_held_is_not_written_again(orders, sql):
    row = "SELECT ctid::text, xmin::text, xmax::text FROM pgqueue_claim"
    ids = orders.send_batch([1, 2], unique=["a", "b"])
    rows = sql(row)

    with transaction.atomic():
        assert orders.send(3, unique="a") == ids[0]
        assert orders.send_batch([4, 5, 6], unique=["b", "a", "a"]) == [ids[1], ids[0], ids[0]]

    assert sql(row) == rows


def test_duplicates_leave_no_dead_rows(committed_orders, sql):
    keys = [str(number) for number in range(1000)]
    committed_orders.send_batch(keys, unique=keys)
    pages = "SELECT pg_relation_size('pgqueue_claim')"
    size = sql(pages)

    for _ in range(100):
        committed_orders.send_batch(keys, unique=keys)

    assert sql(pages) == size
    assert sql("SELECT count(*) FROM pgqueue_claim") == [(1000,)]


@pytest.mark.parametrize("count", [4, 700])
def test_a_batch_adds_what_is_new_and_tells_the_ids_of_the_rest(orders, count):
    known = orders.send("known", unique="k1")
    keys = [None, "k1", "k2", "k2", *(f"x{n}" for n in range(count - 4))]

    ids = orders.send_batch(list(range(count)), unique=keys, headers={"h": 1})

    assert ids[1] == known
    assert ids[2] == ids[3]
    assert len(set(ids)) == count - 1
    added = orders.read(qty=None)
    assert [message.body for message in added] == ["known", 0, 2, *range(4, count)]
    assert orders.send_batch(list(range(count)), unique=keys)[1:] == ids[1:]


def test_a_rolled_back_send_frees_its_key(orders):
    with transaction.atomic():
        first = orders.send("one", unique="k")
        transaction.set_rollback(True)

    assert orders.send("two", unique="k") != first
    assert [message.body for message in orders.read(qty=10)] == ["two"]


@pytest.mark.parametrize(("end", "bodies"), [(commit, ["one"]), (rollback, ["two"])])
@pytest.mark.parametrize("batch", [False, True])
def test_a_send_at_the_same_time_waits_for_the_first(
    committed_orders,
    actors,
    end,
    bodies,
    batch,
    sql,
):
    first, second = actors(2)
    first.do(begin)
    first_id = first.do(call, "send", "orders", "one", unique="k")
    future = (
        second.start(call, "send_batch", "orders", ["two"], unique=["k"])
        if batch
        else second.start(call, "send", "orders", "two", unique="k")
    )
    while not sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert not future.done()

    first.do(end)

    result = future.result(timeout=20)
    second_id = result[0] if batch else result
    assert (second_id == first_id) is (end is commit)
    assert [message.body for message in committed_orders.read(qty=10)] == bodies
