"""Handlers that exceed their timeouts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue import signals
from django_pgqueue.errors import HandlerTimeout
from django_pgqueue.models import Message
from django_pgqueue.retries import Constant, NoRetry
from django_pgqueue.worker.running import Clock
from tests.app.models import Order
from tests.conftest import run_sql
from tests.hearing import listening
from tests.waiting import until
from tests.worker.consuming import InThread, errors, live, outcomes

pytestmark = pytest.mark.django_db(transaction=True)

TIMED_OUT = "django_pgqueue.errors.HandlerTimeout: the handler ran longer than its timeout"


def spin(message: Message) -> None:
    until(lambda: False, 60)


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "REJECT_ON_ERROR", "TRANSACTIONAL"])
def test_a_loop_in_python_is_interrupted(committed_orders, drain, policy):
    committed_orders.send(1)

    drain(spin, timeout=0.3, ack_policy=policy, retry=NoRetry())

    assert errors() == [TIMED_OUT]


def test_the_interrupted_thread_goes_on_with_the_next_message(committed_orders, drain):
    threads: list[int] = []

    def first_spins(message: Message) -> None:
        threads.append(threading.get_ident())
        if message.body == "spin":
            spin(message)

    committed_orders.send_batch(["spin", "next"])

    drain(first_spins, timeout=0.3, max_workers=1, retry=NoRetry())

    assert sorted(outcomes().values()) == ["COMPLETED", "FAILED"]
    assert len(set(threads)) == 1


def test_a_handler_may_clean_up_after_its_timeout_and_complete(committed_orders, drain):
    def clean_up(message: Message) -> None:
        try:
            spin(message)
        except HandlerTimeout:
            Order.objects.create(number="cleaned up")

    pk = committed_orders.send(1)

    drain(clean_up, timeout=0.3)

    assert (Order.objects.count(), outcomes()) == (1, {pk: "COMPLETED"})


def test_a_handler_in_a_system_call_is_abandoned_and_its_worker_replaced(committed_orders, consume):
    let_go = threading.Event()

    def hang(message: Message) -> None:
        if message.body == "hang":
            let_go.wait(60)

    hanging, other = committed_orders.send_batch(["hang", "other"])

    run = consume(hang, timeout=0.3, max_workers=1, retry=NoRetry())
    try:
        until(lambda: len(outcomes()) == 2)

        assert outcomes() == {hanging: "FAILED", other: "COMPLETED"}
        assert errors() == [TIMED_OUT]
        run.stop()  # does not wait for the hanging handler
    finally:
        let_go.set()


def test_an_ack_in_an_abandoned_transaction_does_not_count(committed_orders, consume):
    let_go = threading.Event()

    def say_and_hang(message: Message) -> None:
        Order.objects.create(number="1")
        message.ack()
        let_go.wait(60)

    committed_orders.send(1)

    consume(say_and_hang, timeout=0.3, ack_policy="TRANSACTIONAL", retry=NoRetry())
    try:
        until(lambda: outcomes())

        assert errors() == [TIMED_OUT]
    finally:
        let_go.set()
    until(lambda: not Order.objects.exists())


def test_a_query_that_hangs_is_abandoned_and_rolled_back(committed_orders, drain):
    def hang(message: Message) -> None:
        Order.objects.create(number=str(message.read_ct))
        if message.read_ct == 1:
            run_sql("SELECT pg_sleep(5)")

    pk = committed_orders.send(1)

    drain(
        hang,
        timeout=0.3,
        max_workers=1,
        ack_policy="TRANSACTIONAL",
        retry=Constant(seconds=0),
        options={"graceful_timeout": 1},
    )

    assert outcomes() == {pk: "COMPLETED"}
    until(lambda: Order.objects.count() == 1)


def test_an_async_handler_is_cancelled(committed_orders, drain):
    cancelled: list[bool] = []

    async def hang(message: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    committed_orders.send(1)

    drain(hang, timeout=0.3, retry=NoRetry())

    assert (cancelled, errors()) == ([True], [TIMED_OUT])


def test_an_async_handler_that_ignores_its_cancellation_is_cancelled_again(committed_orders, drain):
    asked: list[bool] = []

    async def stubborn(message: Message) -> None:
        while len(asked) < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                asked.append(True)

    pk = committed_orders.send(1)

    drain(stubborn, timeout=0.2, retry=NoRetry())

    assert outcomes() == {pk: "COMPLETED"}


@pytest.mark.parametrize("leaves_a_block", [False, True])
def test_a_locked_handler_is_interrupted_and_its_work_rolled_back(
    committed_orders, drain, leaves_a_block
):
    def save_and_spin(message: Message) -> None:
        Order.objects.create(number=str(message.read_ct))
        if message.read_ct == 1:
            if leaves_a_block:
                # The state that atomic leaves when interrupted in its first step.
                connection.savepoint_ids.append(None)
            spin(message)

    pk = committed_orders.send(1)

    drain(save_and_spin, timeout=0.3, locked=True, max_workers=1, retry=Constant(seconds=0))

    assert outcomes() == {pk: "COMPLETED"}
    assert list(Order.objects.values_list("number", flat=True)) == ["2"]


def test_timeouts_and_results_that_come_together_lose_nothing(committed_orders, drain):
    """Each handler ends at about its timeout: whichever comes first, every message is settled."""

    def close_call(message: Message) -> None:
        until_about = time.monotonic() + 0.1 + message.body / 1000
        while time.monotonic() < until_about:
            pass

    ids = committed_orders.send_batch(list(range(0, 120, 4)))

    run = drain(close_call, timeout=0.15, max_workers=2, retry=NoRetry())

    assert sorted(outcomes()) == ids
    assert (run.subscription.counts.settled, live()) == (len(ids), [])


def until_overdue(run: InThread) -> None:
    """Wait until the running handler is overdue, so that an interrupt would hit it here."""
    until(
        lambda: any(each.clock is Clock.INTERRUPTED for each in run.subscription.running.values())
    )


def test_no_interrupt_hits_the_end_of_a_locked_handlers_savepoint(committed_orders, consume):
    def linger(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        done = execute(sql, *args)
        if sql.startswith("RELEASE"):
            until_overdue(run)
        return done

    def save(message: Message) -> None:
        Order.objects.create(number=str(message.read_ct))
        if message.read_ct == 1:
            connection.execute_wrappers.append(linger)

    pk = committed_orders.send(1)

    run = consume(save, timeout=0.3, locked=True, max_workers=1, retry=Constant(seconds=0))

    until(lambda: outcomes() == {pk: "COMPLETED"})
    assert list(Order.objects.values_list("number", flat=True)) == ["1"]


@pytest.mark.parametrize("mode", [{}, {"ack_policy": "TRANSACTIONAL"}, {"locked": True}])
def test_a_handler_whose_time_is_over_before_it_starts_does_not_start(
    committed_orders, consume, mode
):
    ran: list[Message] = []

    def dawdle(**kwargs: Any) -> None:
        until_overdue(run)

    pk = committed_orders.send(1)

    with listening(signals.message_started, dawdle):
        run = consume(ran.append, timeout=0.3, max_workers=1, retry=NoRetry(), **mode)
        until(lambda: outcomes() == {pk: "FAILED"})

    assert (ran, errors()) == ([], [TIMED_OUT])
