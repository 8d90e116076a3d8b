"""Results of handlers: storing them, and waiting for them."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
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
from django_pgqueue.models import ArchivedMessage, BoundQueue, Message
from django_pgqueue.retries import NoRetry
from tests.engine.plans.plans import watched
from tests.worker.consuming import Held


def double(message: Message) -> Any:
    return {"doubled": message.body * 2}


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.TRANSACTIONAL])
def test_the_result_is_kept(
    policy: AckPolicy, committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    ids = committed_orders.send_batch([1, 2, 3])

    drain(double, keep_result=True, ack_policy=policy)

    assert [committed_orders.result(pk) for pk in ids] == [{"doubled": n} for n in (2, 4, 6)]


def test_a_locked_handlers_result_is_kept(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    pk = committed_orders.send(4)

    drain(double, keep_result=True, locked=True)

    assert committed_orders.result(pk) == {"doubled": 8}


def test_an_async_handlers_result_is_kept(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    pk = committed_orders.send(4)

    async def later(message: Message) -> int:
        return message.body + 1

    drain(later, keep_result=True)

    assert committed_orders.result(pk) == 5


def test_a_batch_has_a_result_for_each_message(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    ids = committed_orders.send_batch([1, 2, 3])

    def all_at_once(messages: list[Message]) -> list[Any]:
        return [None if m.body == 2 else m.body for m in messages]

    drain(all_at_once, keep_result=True, batch=True)

    assert [committed_orders.result(pk) for pk in ids] == [1, None, 3]


def test_nothing_is_kept_unless_it_is_asked_for(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    pk = committed_orders.send(1)

    drain(double)

    assert committed_orders.result(pk) is None
    assert ArchivedMessage.objects.get(pk=pk).result is None


def test_dates_are_stored_as_a_body_would_be(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    pk = committed_orders.send(1)

    drain(lambda message: dt.date(2026, 2, 3), keep_result=True)

    assert committed_orders.result(pk) == "2026-02-03"


def test_a_result_that_is_not_json_is_an_error_of_the_handler(
    committed_orders: BoundQueue, drain: Callable[..., Any]
) -> None:
    pk = committed_orders.send(1)

    drain(lambda message: object(), keep_result=True, retry=NoRetry())

    with pytest.raises(MessageFailed, match="result is not JSON"):
        committed_orders.result(pk)
    assert committed_orders.attempts(pk)[0].error_class.endswith("InvalidMessage")


def test_an_outcome_is_no_result(committed_orders: BoundQueue, drain: Callable[..., Any]) -> None:
    first, second = committed_orders.send_batch([1, 2])

    def some(message: Message) -> Any:
        if message.body == 1:
            return Ack()
        return Nack(0) if message.attempts == 0 else "done"

    drain(some, keep_result=True)

    assert (committed_orders.result(first), committed_orders.result(second)) == (None, "done")


def test_a_result_of_one_message_leaves_the_others_of_its_lease(
    committed_orders: BoundQueue,
) -> None:
    ids = committed_orders.send_batch(list(range(40)))
    messages = committed_orders.read(qty=40)
    first = messages[0].receipt

    settled = queue("orders").complete([m.receipt for m in messages], results={first: "yes"})

    assert sorted(settled) == ids
    assert settled.lost == []
    assert committed_orders.result(ids[0]) == "yes"
    assert ArchivedMessage.objects.filter(result__isnull=True).count() == 39


def test_ack_first_has_no_result() -> None:
    with pytest.raises(InvalidArgument, match="keep_result has nothing to keep"):
        Handler("orders", double, keep_result=True, ack_policy=AckPolicy.ACK_FIRST)


def test_a_live_message_has_no_result_yet(orders: BoundQueue) -> None:
    pk = orders.send(1)

    with pytest.raises(ResultNotReady, match=f"Message {pk} of queue 'orders' is PENDING"):
        orders.result(pk)
    assert issubclass(ResultNotReady, TimeoutError)


def test_a_failed_message_says_why(committed_orders: BoundQueue, drain: Callable[..., Any]) -> None:
    pk = committed_orders.send(1)

    def fail(message: Message) -> None:
        raise ValueError("no such customer")

    drain(fail, keep_result=True, retry=NoRetry())

    with pytest.raises(MessageFailed, match="ValueError: no such customer") as raised:
        committed_orders.result(pk)
    assert "Traceback" in raised.value.error


def test_a_dead_letter_has_failed(committed: None, drain: Callable[..., Any]) -> None:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    pk = queue("orders").send(1)

    def fail(message: Message) -> None:
        raise ValueError("no such customer")

    drain(fail, retry=NoRetry())

    with pytest.raises(MessageFailed, match="no such customer"):
        queue("orders").result(pk)


def test_an_unknown_message_is_told_from_one_that_waits(orders: BoundQueue) -> None:
    with pytest.raises(MessageNotFound, match="has no message 77"):
        orders.result(77)


@pytest.mark.parametrize("pk", ["7", None, 7.0, True])
def test_an_id_is_a_whole_number(orders: BoundQueue, pk: Any) -> None:
    with pytest.raises(InvalidArgument, match="whole number"):
        orders.result(pk)


def test_wait_returns_as_soon_as_it_is_done(
    committed_orders: BoundQueue, consume: Callable[..., Any], held: Held
) -> None:
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


def test_async_wait(committed_orders: BoundQueue, consume: Callable[..., Any]) -> None:
    pk = committed_orders.send(4)
    consume(double, keep_result=True)

    assert async_to_sync(committed_orders.aresult)(pk, timeout=20) == {"doubled": 8}
    with pytest.raises(MessageNotFound):
        async_to_sync(committed_orders.aresult)(10**12)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_a_timeout_is_seconds(orders: BoundQueue, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        orders.result(1, timeout=timeout)


def test_one_among_many_ready_messages_is_found_by_indexes(orders: BoundQueue) -> None:
    pk = orders.send_batch([0] * 5_000)[2_500]

    with watched(connection) as plans, pytest.raises(ResultNotReady):
        orders.result(pk)

    for plan in plans:
        plan.check(rows=10, buffers=100)
