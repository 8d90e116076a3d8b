"""Cancelled messages: waiting ones are not read, and running handlers are notified."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_pgqueue import queue
from django_pgqueue.errors import InvalidArgument, MessageCancelled
from django_pgqueue.models import ArchivedMessage, Message
from tests.actors import call
from tests.app.models import Order
from tests.conftest import run_sql
from tests.waiting import until
from tests.worker.consuming import live, outcomes

CANCELLED = "CANCELLED"


def test_waiting_messages_go_to_the_archive(orders):
    ready = orders.send(1)
    later = orders.send(2, delay=3600)
    first, behind = orders.send(3, group="g"), orders.send(4, group="g")
    stays = orders.send(5)

    done = orders.cancel([ready, later, first, behind])

    assert sorted(done) == sorted([ready, later, first, behind])
    assert done.lost == []
    assert set(outcomes().values()) == {CANCELLED}
    assert [m.id for m in orders.read(qty=10)] == [stays]
    assert ArchivedMessage.objects.get(pk=ready).attempts == 0


def test_the_next_of_a_group_takes_the_place_of_one_that_was_cancelled(orders):
    first, second = orders.send_batch([1, 2], group="g")
    [message] = orders.read()
    assert message.id == first

    orders.cancel(first)

    assert [m.id for m in orders.read()] == [second]


def test_a_finished_message_is_not_cancelled(orders):
    done = orders.send(1)
    orders.archive(done)

    result = orders.cancel([done, 10**12])

    assert list(result) == []
    assert result.lost == [done, 10**12]
    assert outcomes() == {done: "COMPLETED"}


@pytest.mark.parametrize(
    ("reason", "said"), [("", r"\.$"), ("the customer withdrew", r": the customer withdrew\.$")]
)
def test_a_cancelled_message_has_no_result_but_a_reason(orders, reason, said):
    pk = orders.send(1)
    orders.cancel(pk, reason=reason)

    with pytest.raises(
        MessageCancelled, match=rf"Message {pk} of queue 'orders' was cancelled{said}"
    ) as raised:
        orders.result(pk)
    assert (raised.value.reason, raised.value.error) == (reason, reason or "cancelled")


def test_cancelling_takes_ids_messages_and_receipts(orders):
    one, two, three = orders.send_batch([1, 2, 3])
    read = {m.id: m for m in orders.read(qty=3)}

    assert sorted(orders.cancel([one, read[two], read[three].receipt])) == [one, two, three]
    with pytest.raises(InvalidArgument):
        orders.cancel("7")


def test_a_cancelled_message_can_be_replayed(orders):
    orders.cancel(orders.send(1))

    assert orders.replay(state=CANCELLED) == 1
    assert [m.body for m in orders.read()] == [1]


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "TRANSACTIONAL"])
def test_a_running_handler_learns_of_its_cancellation_and_a_transactional_one_is_rolled_back(
    committed_orders, consume, policy
):
    begun, ended = threading.Event(), threading.Event()
    told: list[bool] = []

    def work(message: Message, context: Any) -> None:
        Order.objects.create(number="7")
        told.append(context.cancelled)
        begun.set()
        until(lambda: context.cancelled, seconds=20)
        ended.set()

    pk = committed_orders.send(1)
    run = consume(work, ack_policy=policy, visibility_timeout=1)
    assert begun.wait(10)

    assert committed_orders.cancel(pk) == [pk]

    assert ended.wait(20)
    until(lambda: run.subscription.counts.cancelled == 1)
    assert told == [False]
    assert Order.objects.exists() is (policy == "NACK_ON_ERROR")
    assert (outcomes(), live()) == ({pk: CANCELLED}, [])


def test_an_async_handler_is_cancelled(committed_orders, consume):
    begun = threading.Event()
    ended: list[str] = []

    async def work(message: Message) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    pk = committed_orders.send(1)
    run = consume(work, visibility_timeout=1)
    assert begun.wait(10)

    committed_orders.cancel(pk)

    until(lambda: ended, seconds=20)
    until(lambda: not run.subscription.running, seconds=20)
    assert outcomes() == {pk: CANCELLED}
    again = committed_orders.send(2)
    until(lambda: len(ended) == 1 and run.subscription.running, seconds=20)
    committed_orders.cancel(again)
    until(lambda: len(ended) == 2, seconds=20)


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "TRANSACTIONAL"])
def test_the_outcome_of_a_cancelled_run_changes_nothing(committed_orders, consume, held, policy):
    pk = committed_orders.send(1)

    def work(message: Message) -> None:
        Order.objects.create(number="7")
        held.work(message)

    run = consume(work, ack_policy=policy)
    held.until_begun()

    committed_orders.cancel(pk)
    held.let_go()

    until(lambda: run.subscription.counts.cancelled == 1)
    assert run.subscription.counts.lost == 0
    assert Order.objects.exists() is (policy == "NACK_ON_ERROR")
    assert (outcomes(), live()) == ({pk: CANCELLED}, [])


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("NACK_ON_ERROR", True),
        ("NACK_ON_ERROR", False),
        ("TRANSACTIONAL", True),
        ("TRANSACTIONAL", False),
        # Archived before the handler runs, so the message is cancelled in the buffer.
        ("ACK_FIRST", False),
    ],
)
def test_a_cancellation_is_announced_once_and_is_no_lost_lease(
    committed_orders, consume, events, caplog, policy, told
):
    """Both the lease loop and the late outcome may notice the cancellation."""
    caplog.set_level("INFO", "django_pgqueue")
    begun, cancelled = threading.Event(), threading.Event()

    def work(message: Message, context: Any) -> None:
        begun.set()
        cancelled.wait(20)
        if told and message.body == 1:
            until(lambda: context.cancelled, seconds=20)

    ids = committed_orders.send_batch([1, 2])
    run = consume(work, ack_policy=policy, visibility_timeout=2 if told else 60, max_workers=1)
    assert begun.wait(10)
    until(lambda: run.subscription.counts.leased >= 2)

    chosen = ids[1] if policy == "ACK_FIRST" else ids[0]
    committed_orders.cancel(chosen, reason="the customer withdrew")
    cancelled.set()

    until(
        lambda: run.subscription.counts.cancelled == 1 and run.subscription.counts.completed == 1,
        seconds=20,
    )
    run.stop()
    [announced] = [kwargs for name, kwargs in events if name == "messages_cancelled"]
    assert [message.id for message in announced["messages"]] == [chosen]
    assert announced["reasons"] == ["the customer withdrew"]
    assert "leases_lost" not in [name for name, _ in events]
    lines = [line for line in caplog.messages if "cancelled" in line]
    assert lines == [
        f"orders: message {chosen} was cancelled (the customer withdrew); its handler's outcome is "
        f"ignored"
    ]
    assert not any("lost the lease" in line for line in caplog.messages)


def test_followers_of_a_cancelled_message_run(committed_orders, consume, held):
    first, *behind = committed_orders.send_batch([1, 2, 3], group="one")
    run = consume(held.work)
    held.until_begun()
    until(lambda: len(run.subscription.buffer.groups) == 2)

    committed_orders.cancel(first)
    held.let_go()

    until(lambda: run.subscription.counts.completed == 2)
    assert outcomes() == {first: CANCELLED, **dict.fromkeys(behind, "COMPLETED")}
    assert {done.read_ct for done in ArchivedMessage.objects.all()} == {1}
    assert run.subscription.counts.lost == 0


def test_an_async_batch_is_cancelled_once_all_messages_are(committed_orders, consume):
    begun, cancelled = threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    async def work(messages: list[Message], context: Any) -> None:
        begun.set()
        try:
            while not any(message.cancelled for message in messages):
                await asyncio.sleep(0.01)
            seen.append([context.cancelled, *(message.cancelled for message in messages)])
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append([context.cancelled])
            cancelled.set()
            raise

    one, two = committed_orders.send_batch([1, 2])
    consume(work, batch=True, visibility_timeout=1)
    assert begun.wait(10)

    committed_orders.cancel(one)
    until(lambda: seen, seconds=20)
    committed_orders.cancel(two)

    assert cancelled.wait(20)
    assert seen == [[False, True, False], [True]]
    until(lambda: outcomes() == {one: CANCELLED, two: CANCELLED})


def test_cancelling_waits_for_a_locked_handler(committed_orders, consume, held, actor):
    pk = committed_orders.send(1)
    consume(held.work, locked=True)
    held.until_begun()

    waiting = actor.start(call, "cancel", "orders", pk)
    until(lambda: run_sql("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)], seconds=20)
    held.let_go()

    assert list(waiting.result(20)) == []
    assert outcomes() == {pk: "COMPLETED"}


def test_a_lost_lease_is_no_cancellation(committed_orders, consume, held, events):
    pk = committed_orders.send(1)
    contexts: list[Any] = []

    def work(message: Message, context: Any) -> None:
        contexts.append(context)
        held.work(message)

    consume(work, visibility_timeout=1)
    held.until_begun()
    committed_orders.archive(pk)

    until(lambda: "leases_lost" in [name for name, _ in events], seconds=20)
    assert not contexts[0].cancelled
    held.let_go()


def test_a_batch_learns_of_its_cancellation_once_all_messages_are_cancelled(
    committed_orders, consume
):
    begun = threading.Event()
    seen: list[list[bool]] = []

    def work(messages: list[Message], context: Any) -> None:
        begun.set()
        until(lambda: any(m.cancelled for m in messages), seconds=20)
        seen.append([context.cancelled, *(m.cancelled for m in messages)])
        committed_orders.cancel([m.id for m in messages])
        until(lambda: context.cancelled, seconds=20)
        seen.append([context.cancelled])

    one, two = committed_orders.send_batch([1, 2])
    consume(work, batch=True, visibility_timeout=1)
    assert begun.wait(10)

    queue("orders").cancel(one)

    until(lambda: len(seen) == 2, seconds=30)
    assert seen == [[False, True, False], [True]]
    assert outcomes() == {one: CANCELLED, two: CANCELLED}
