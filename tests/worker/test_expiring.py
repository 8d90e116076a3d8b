"""Messages that expire while a consumer holds them, and what it tells about expired ones."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_pgqueue.models import History, Message
from django_pgqueue.retries import Constant
from tests.conftest import run_sql
from tests.waiting import until
from tests.worker.consuming import outcomes

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds after which the messages of these tests expire: enough to be fetched before.
SOON = 1.5


def is_over(pk: int) -> bool:
    """Whether a message has expired, by the server's clock."""
    return run_sql(
        "SELECT expires_at < clock_timestamp() FROM pgqueue_message WHERE id = %s", [pk]
    ) == [(True,)]


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "ACK_FIRST", "TRANSACTIONAL"])
@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "grouped"])
def test_a_fetched_message_that_expires_before_its_handler_starts_is_not_handled(
    committed_orders, consume, held, policy, group
):
    handled: list[Any] = []

    def work(message: Message) -> None:
        handled.append(message.body)
        if message.body == "first":
            held.work(message)

    send = committed_orders.send
    first, late = send("first", group=group), send("late", expires=SOON, group=group)
    last = send("last", group=group)
    run = consume(work, ack_policy=policy, max_workers=1)
    held.until_begun()
    until(lambda: run.subscription.counts.fetched == 3)
    until(lambda: is_over(late))
    held.let_go()

    until(lambda: len(outcomes()) == 3 and "last" in handled)
    assert handled == ["first", "last"]
    assert outcomes() == {first: "COMPLETED", late: "EXPIRED", last: "COMPLETED"}


def test_an_async_handler_does_not_start_on_a_message_that_has_expired(committed_orders, consume):
    handled: list[Any] = []
    begun, go = threading.Event(), threading.Event()

    async def work(message: Message) -> None:
        handled.append(message.body)
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.01)

    first, late = committed_orders.send("first"), committed_orders.send("late", expires=SOON)
    run = consume(work, max_workers=1)
    assert begun.wait(10)
    until(lambda: run.subscription.counts.fetched == 2)
    until(lambda: is_over(late))
    go.set()

    until(lambda: len(outcomes()) == 2)
    assert handled == ["first"]
    assert outcomes() == {first: "COMPLETED", late: "EXPIRED"}


def test_a_batch_handler_gets_the_messages_of_its_batch_that_have_not_expired(
    committed_orders, consume, held
):
    handled: list[list[Any]] = []

    def work(messages: list[Message]) -> None:
        handled.append([message.body for message in messages])
        if "first" in handled[-1]:
            held.work(messages[0])

    committed_orders.send("first")
    consume(work, batch=True, batch_size=2, max_workers=1, overfetch_factor=2)
    held.until_begun()
    late, _in_time = committed_orders.send("late", expires=SOON), committed_orders.send("in time")
    until(lambda: is_over(late))
    held.let_go()

    until(lambda: len(outcomes()) == 3)
    assert handled == [["first"], ["in time"]]
    assert outcomes()[late] == "EXPIRED"


def test_a_handler_that_runs_when_its_message_expires_runs_to_its_end(
    committed_orders, consume, held
):
    pk = committed_orders.send(1, expires=SOON)
    consume(held.work, visibility_timeout=0.6)
    held.until_begun()
    until(lambda: is_over(pk))
    held.let_go()

    until(lambda: outcomes() == {pk: "COMPLETED"})


def test_a_locked_consumer_archives_an_expired_message_and_handles_the_next(
    committed_orders, consume
):
    late, in_time = committed_orders.send(1, expires=0.001), committed_orders.send(2)
    until(lambda: is_over(late))

    consume(lambda message: None, locked=True)

    until(lambda: outcomes() == {late: "EXPIRED", in_time: "COMPLETED"})


def test_a_message_whose_next_attempt_comes_too_late_expires(committed_orders, consume):
    attempts: list[int] = []

    def fail(message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError("out of stock")

    pk = committed_orders.send(1, expires=SOON)
    consume(fail, retry=Constant(seconds=2 * SOON, max_attempts=5))

    until(lambda: outcomes() == {pk: "EXPIRED"})
    assert attempts == [0]


def test_a_consumer_signals_counts_and_logs_what_expired(committed_orders, drain, events, caplog):
    caplog.set_level("INFO", "django_pgqueue")
    late = committed_orders.send_batch([1, 2, 3], expires=0.001)
    until(lambda: all(map(is_over, late)))

    run = drain(lambda message: None)

    told = [kwargs["ids"] for name, kwargs in events if name == "messages_expired"]
    assert sorted(pk for ids in told for pk in ids) == late
    assert run.subscription.report()["expired"] == 3
    assert sum(row.expired for row in History.objects.all()) == 3
    assert "orders: archived 3 expired messages unhandled" in caplog.messages
