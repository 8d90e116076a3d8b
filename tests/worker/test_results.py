"""Results of handlers: storing them, and waiting for them."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from django_pgqueue import queue
from django_pgqueue.acks import Ack, AckPolicy, Nack
from django_pgqueue.errors import (
    InvalidArgument,
    MessageFailed,
    MessageNotFound,
    ResultNotReady,
)
from django_pgqueue.handlers import Handler
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.retries import NoRetry
from tests.engine.plans.plans import watched


def double(message: Message) -> Any:
    return {"doubled": message.body * 2}


async def later(message: Message) -> Any:
    return double(message)


def all_at_once(messages: list[Message]) -> list[Any]:
    return [double(message) for message in messages]


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (double, {}),
        (double, {"ack_policy": AckPolicy.TRANSACTIONAL}),
        (double, {"locked": True}),
        (later, {}),
        (all_at_once, {"batch": True}),
    ],
)
def test_the_result_is_kept(committed_orders, drain, handler, options):
    ids = committed_orders.send_batch([1, 2, 3])

    drain(handler, keep_result=True, **options)

    assert [committed_orders.result(pk) for pk in ids] == [{"doubled": n} for n in (2, 4, 6)]


def test_no_result_is_kept_without_keep_result(committed_orders, drain):
    pk = committed_orders.send(1)

    drain(double)

    assert committed_orders.result(pk) is None
    assert ArchivedMessage.objects.get(pk=pk).result is None


def test_dates_are_stored_as_a_body_would_be(committed_orders, drain):
    pk = committed_orders.send(1)

    drain(lambda message: dt.date(2026, 2, 3), keep_result=True)

    assert committed_orders.result(pk) == "2026-02-03"


def test_a_result_that_is_not_json_is_an_error_of_the_handler(committed_orders, drain):
    pk = committed_orders.send(1)

    drain(lambda message: object(), keep_result=True, retry=NoRetry())

    with pytest.raises(MessageFailed, match="result is not JSON"):
        committed_orders.result(pk)
    assert committed_orders.attempts(pk)[0].error_class.endswith("InvalidMessage")


def test_an_outcome_is_no_result(committed_orders, drain):
    first, second = committed_orders.send_batch([1, 2])

    def some(message: Message) -> Any:
        if message.body == 1:
            return Ack()
        return Nack(0) if message.attempts == 0 else "done"

    drain(some, keep_result=True)

    assert (committed_orders.result(first), committed_orders.result(second)) == (None, "done")


def test_a_result_of_one_message_leaves_the_others_of_its_lease(committed_orders):
    ids = committed_orders.send_batch(list(range(40)))
    messages = committed_orders.read(qty=40)
    first = messages[0].receipt

    settled = queue("orders").complete([m.receipt for m in messages], results={first: "yes"})

    assert sorted(settled) == ids
    assert settled.lost == []
    assert committed_orders.result(ids[0]) == "yes"
    assert ArchivedMessage.objects.filter(result__isnull=True).count() == 39


def test_ack_first_has_no_result():
    with pytest.raises(InvalidArgument, match="keep_result has nothing to keep"):
        Handler("orders", double, keep_result=True, ack_policy=AckPolicy.ACK_FIRST)


def test_a_live_message_has_no_result_yet(orders):
    pk = orders.send(1)

    with pytest.raises(ResultNotReady, match=f"Message {pk} of queue 'orders' is PENDING"):
        orders.result(pk)
    assert issubclass(ResultNotReady, TimeoutError)


@pytest.mark.parametrize("dead_letter_queue", [None, "dead"])
def test_the_result_of_a_failed_message_raises_its_error(committed, drain, dead_letter_queue):
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue=dead_letter_queue)
    pk = queue("orders").send(1)

    def fail(message: Message) -> None:
        raise ValueError("no such customer")

    drain(fail, keep_result=True, retry=NoRetry())

    with pytest.raises(MessageFailed, match="ValueError: no such customer") as raised:
        queue("orders").result(pk)
    assert "Traceback" in raised.value.error


def test_an_unknown_message_is_distinguished_from_one_that_waits(orders):
    with pytest.raises(MessageNotFound, match="Message 77 is neither in queue"):
        orders.result(77)


@pytest.mark.parametrize(
    ("pk", "timeout", "match"),
    [
        *((pk, None, "whole number") for pk in ("7", None, 7.0, True)),
        *((1, timeout, "timeout") for timeout in (-1, "soon", float("nan"))),
    ],
)
def test_an_id_is_a_whole_number_and_a_timeout_is_seconds(orders, pk, timeout, match):
    with pytest.raises(InvalidArgument, match=match):
        orders.result(pk, timeout=timeout)


def test_wait_returns_as_soon_as_it_is_done(committed_orders, consume, held):
    def work(message: Message) -> str:
        held.work(message)
        return "done"

    consume(work, keep_result=True)
    pk = committed_orders.send(1)
    held.until_begun()
    with pytest.raises(ResultNotReady, match="PROCESSING"):
        committed_orders.wait(pk, timeout=0.05)

    timer = threading.Timer(0.05, held.let_go)
    timer.start()

    assert committed_orders.wait(pk, timeout=20) == "done"


def test_async_wait(committed_orders, consume):
    pk = committed_orders.send(4)
    consume(double, keep_result=True)

    assert async_to_sync(committed_orders.aresult)(pk, timeout=20) == {"doubled": 8}
    with pytest.raises(MessageNotFound):
        async_to_sync(committed_orders.aresult)(10**12)


def test_one_among_many_ready_messages_is_found_by_indexes(orders):
    pk = orders.send_batch([0] * 5_000)[2_500]

    with watched(connection) as plans, pytest.raises(ResultNotReady):
        orders.result(pk)

    for plan in plans:
        plan.check(rows=10, buffers=100)
