"""How handlers are called: single messages or batches, typed bodies, context, middleware, async."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import connection, connections, transaction
from django.urls import get_urlconf, set_urlconf
from django.utils import timezone, translation

from django_pgqueue import signals
from django_pgqueue.acks import Ack, Discard, Nack, Reject, Retry
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.retries import Constant, NoRetry
from tests.app.models import Order
from tests.conftest import run_sql
from tests.hearing import listening
from tests.waiting import until
from tests.worker.consuming import errors, live, outcomes

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@dataclass
class Charge:
    order: int
    amount: float = 1.0


# Batches


def test_a_batch_handler_gets_a_list(committed_orders, drain):
    batches: list[list[int]] = []

    def take(messages: list[Message]) -> None:
        batches.append([message.body for message in messages])

    committed_orders.send_batch(list(range(25)))

    drain(take, batch=True, batch_size=10, max_workers=1)

    assert sorted(body for batch in batches for body in batch) == list(range(25))
    assert max(map(len, batches)) == 10
    assert list(outcomes().values()) == ["COMPLETED"] * 25


def test_each_message_of_a_batch_has_its_own_outcome(committed_orders, drain):
    answers = [None, Ack(), Reject("bad"), Discard(), Nack(0), Retry(delay=0), OSError("away")]

    def answer(messages: list[Message]) -> list[Any]:
        return [answers[m.body] if m.read_ct == 1 else None for m in messages]

    none, ack, reject, discard, nack, retry, error = committed_orders.send_batch(
        list(range(len(answers)))
    )

    run = drain(answer, batch=True, retry=NoRetry())

    assert outcomes() == {
        **dict.fromkeys([none, ack, nack, retry], "COMPLETED"),
        **dict.fromkeys([reject, error], "FAILED"),
    }
    assert errors() == ["bad", "OSError: away"]
    assert (run.subscription.counts.retried, discard in outcomes()) == (2, False)


def test_a_batch_handler_that_raises_raises_for_all(committed_orders, drain):
    def fail(messages: list[Message]) -> None:
        raise ValueError("all of them")

    committed_orders.send_batch([1, 2, 3])

    drain(fail, batch=True, retry=NoRetry())

    assert errors() == ["ValueError: all of them"] * 3


@pytest.mark.parametrize("returned", [[None], [None] * 3, 7])
def test_a_batch_handler_that_returns_anything_else_fails_with_a_type_error(
    committed_orders, drain, returned
):
    committed_orders.send_batch([1, 2])

    drain(lambda messages: returned, batch=True, batch_size=2, retry=NoRetry())

    assert len(errors()) == 2
    assert all(error.startswith("TypeError") for error in errors())


# Return values


async def work(message: Message) -> None:
    pass


def decorated(message):
    """An async function, as a plain decorator leaves it."""
    return work(message)


async def forgotten(message: Message) -> Any:
    return work(message)


def generated(message: Message) -> Any:
    return (each for each in [message])


MODES = [{}, {"ack_policy": "TRANSACTIONAL"}, {"locked": True}]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("handler", [decorated, generated])
@pytest.mark.filterwarnings("error")
def test_a_handler_whose_work_has_not_run_is_a_failed_attempt(
    committed_orders, drain, handler, mode
):
    pk = committed_orders.send(1)

    drain(handler, retry=NoRetry(), **mode)

    assert outcomes() == {pk: "FAILED"}
    assert "whose work has not run" in errors()[0]


@pytest.mark.filterwarnings("error")
def test_an_async_handler_that_returns_a_coroutine_is_a_failed_attempt(committed_orders, drain):
    committed_orders.send(1)

    drain(forgotten, retry=NoRetry())

    assert "write async def for the handler" in errors()[0]


@pytest.mark.filterwarnings("error")
def test_a_batch_handler_whose_work_has_not_run_fails_its_batch(committed_orders, drain):
    committed_orders.send_batch([1, 2])

    drain(decorated, batch=True, retry=NoRetry())

    assert ["whose work has not run" in error for error in errors()] == [True, True]


def test_an_object_with_an_async_call_is_awaited(committed_orders, drain):
    seen: list[Any] = []

    class Charging:
        async def __call__(self, body: Charge) -> None:
            await asyncio.sleep(0)
            seen.append(body)

    pk = committed_orders.send({"order": 7})

    drain(Charging())

    assert (seen, outcomes()) == ([Charge(7, 1.0)], {pk: "COMPLETED"})


class OutOfStock(Exception):
    def __init__(self, article: str) -> None:
        super().__init__(article)


@pytest.mark.parametrize(
    ("returned", "ends"),
    [
        (Reject, ["FAILED"]),
        (Discard, []),
        (Ack, ["COMPLETED"]),
        (Retry, ["FAILED"]),
        (Nack, ["FAILED"]),
        (ValueError, ["FAILED"]),
        (OutOfStock, ["FAILED"]),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_class_that_a_handler_returns_means_its_instance(
    committed_orders, drain, returned, ends, batch
):
    committed_orders.send(1)

    drain(lambda given: [returned] if batch else returned, retry=NoRetry(), batch=batch)

    assert (list(outcomes().values()), live()) == (ends, [])


# Typed bodies


@pytest.mark.parametrize("policy", ["NACK_ON_ERROR", "TRANSACTIONAL", "MANUAL"])
def test_a_body_that_does_not_fit_is_rejected_with_the_reason(committed_orders, drain, policy):
    charged: list[Charge] = []

    def charge(body: Charge, message: Message) -> None:
        charged.append(body)
        message.ack()

    good, bad = committed_orders.send_batch([{"order": 7}, {"amount": 3}])

    drain(charge, ack_policy=policy)

    assert charged == [Charge(7, 1.0)]
    assert outcomes() == {good: "COMPLETED", bad: "FAILED"}
    assert errors()[0].startswith("the body is not a valid Charge")


def test_a_misfit_leaves_its_batch_before_the_handler(committed_orders, drain):
    charged: list[int] = []

    def charge(bodies: list[Charge], message: list[Message]) -> None:
        charged.extend(body.order for body in bodies)
        assert len(message) == len(bodies)

    committed_orders.send_batch([{"order": 1}, "odd", {"order": 3}])

    drain(charge, batch=True)

    assert charged == [1, 3]
    assert sorted(outcomes().values()) == ["COMPLETED", "COMPLETED", "FAILED"]


# Context and middleware


def test_the_context_describes_the_run(committed_orders, drain, caplog):
    contexts: list[Any] = []

    def look(message: Message, context: Any) -> None:
        contexts.append(
            (context.queue, context.attempt, context.deliveries, context.messages == [message])
        )
        assert 0 < context.remaining <= 60
        assert time.monotonic() < context.deadline <= time.monotonic() + 60
        context.logger.warning("looking")

    pk = committed_orders.send(1)

    with caplog.at_level(logging.WARNING):
        drain(look, timeout=60)

    assert contexts == [("orders", 1, 1, True)]
    [record] = [record for record in caplog.records if record.message == "looking"]
    assert (record.queue, record.message_id) == ("orders", pk)  # type: ignore[attr-defined]
    assert record.name == __name__


def test_without_a_timeout_there_is_no_deadline(committed_orders, drain):
    seen: list[Any] = []
    committed_orders.send(1)

    drain(lambda message, context: seen.append((context.deadline, context.remaining)))

    assert seen == [(None, float("inf"))]


def test_middleware_goes_around_the_handler_outermost_first(committed_orders, drain):
    steps: list[str] = []

    def named(name: str) -> Callable[..., Any]:
        def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(given: Any, context: Any) -> Any:
                steps.append(f"{name} in {context.queue}")
                try:
                    return call(given, context)
                finally:
                    steps.append(f"{name} out")

            return run

        return middleware

    committed_orders.send(1)

    drain(lambda message: steps.append("handler"), middleware=[named("outer"), named("inner")])

    assert steps == ["outer in orders", "inner in orders", "handler", "inner out", "outer out"]


def test_middleware_may_decide_the_outcome(committed_orders, drain):
    def guard(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(given: Any, context: Any) -> Any:
            if given.body == "stranger":
                raise Reject("not let in")
            return call(given, context)

        return run

    committed_orders.send_batch(["friend", "stranger"])

    drain(lambda message: None, middleware=[guard])

    assert errors() == ["not let in"]


# Contexts

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def surroundings() -> tuple[Any, ...]:
    zone = timezone.get_current_timezone_name()
    return request_id.get(), translation.get_language(), zone, get_urlconf()


def leave_traces() -> None:
    request_id.set("7")
    translation.activate("de")
    timezone.activate(ZoneInfo("Asia/Tokyo"))
    set_urlconf("tests.elsewhere")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_nothing_that_a_handler_sets_for_its_context_reaches_the_next_one(
    committed_orders, drain, mode
):
    found: list[tuple[Any, ...]] = []

    def look(message: Message) -> None:
        found.append(surroundings())
        leave_traces()
        transaction.on_commit(leave_traces)

    committed_orders.send_batch([1, 2, 3])

    drain(look, max_workers=1, **mode)

    assert len(found) == 3
    assert len(set(found)) == 1
    assert found[0][0] is None


def test_middleware_and_receivers_share_the_context_of_their_handler(committed_orders, drain):
    found: list[Any] = []

    def start(**kwargs: Any) -> None:
        found.append(request_id.get())
        request_id.set("7")

    def finish(**kwargs: Any) -> None:
        found.append(request_id.get())

    committed_orders.send_batch([1, 2])

    with listening(signals.message_started, start), listening(signals.message_finished, finish):
        drain(lambda message: found.append(request_id.get()), max_workers=1)

    assert found == [None, "7", "7"] * 2


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_worker_keeps_its_caches_and_their_connections(committed_orders, drain, mode):
    found: list[Any] = []

    committed_orders.send_batch([1, 2, 3])

    drain(lambda message: found.append(caches["default"]), max_workers=1, **mode)

    assert len(found) == 3
    assert len(set(map(id, found))) == 1


# Async


def test_async_handlers_run_side_by_side(committed_orders, drain):
    together: list[int] = []
    inside = 0

    async def wait(message: Message) -> None:
        nonlocal inside
        inside += 1
        together.append(inside)
        for _ in range(500):
            if max(together) >= 20:
                break
            await asyncio.sleep(0.01)
        inside -= 1

    committed_orders.send_batch(list(range(40)))

    drain(wait, max_workers=20)

    assert max(together) == 20
    assert list(outcomes().values()) == ["COMPLETED"] * 40


def test_an_async_handler_may_use_the_orm_and_settle_and_extend(committed_orders, drain):
    async def save(message: Message) -> None:
        await Order.objects.acreate(number="7")
        await message.aextend(60)
        await message.aack()

    pk = committed_orders.send(1)

    drain(save, ack_policy="MANUAL")

    assert (Order.objects.count(), outcomes()) == (1, {pk: "COMPLETED"})


def test_an_async_batch(committed_orders, drain):
    async def take(messages: list[Message]) -> list[Any]:
        return [None if message.body else Reject("empty") for message in messages]

    committed_orders.send_batch([0, 1, 2])

    drain(take, batch=True)

    assert errors() == ["empty"]


def test_async_handlers_recover_from_a_lost_connection(committed_orders, drain):
    def break_it() -> None:
        run_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    async def use(message: Message) -> None:
        if message.body == "break" and message.read_ct == 1:
            await sync_to_async(break_it)()
        await Order.objects.acreate(number="7")

    committed_orders.send_batch(["break", "use", "use"])

    drain(use, max_workers=1, retry=Constant(seconds=0.01, max_attempts=10))

    assert (Order.objects.count(), set(outcomes().values())) == (3, {"COMPLETED"})


# Connections


def test_a_handler_that_lost_its_connection_leaves_a_good_one(committed_orders, drain):
    def use(message: Message) -> None:
        with connection.cursor() as cursor:
            if message.body == "break" and message.read_ct == 1:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("SELECT 1")

    committed_orders.send_batch(["break", "use", "use"])

    run = drain(use, max_workers=1, retry=Constant(seconds=0.01, max_attempts=5))

    assert run.subscription.counts.retried == 1
    assert set(outcomes().values()) == {"COMPLETED"}


def test_an_unfinished_transaction_is_an_error_and_does_not_reach_the_next_handler(
    committed_orders, drain
):
    found: list[bool] = []

    def leave_open(message: Message) -> None:
        connection.ensure_connection()
        found.append(connection.get_autocommit())
        connection.set_autocommit(False)
        Order.objects.create(number="never committed")

    committed_orders.send_batch([1, 2, 3])

    drain(leave_open, max_workers=1, retry=NoRetry())

    assert found == [True] * 3
    assert not Order.objects.exists()
    assert ["left a transaction open" in error for error in errors()] == [True] * 3


def test_a_transaction_that_was_begun_as_text_is_an_error_and_undoes_no_later_work(
    committed_orders, drain
):
    def work(message: Message) -> None:
        if message.body == "begin":
            run_sql("BEGIN")
        Order.objects.create(number=message.body)

    committed_orders.send_batch(["begin", "innocent"])

    drain(work, max_workers=1, retry=NoRetry())

    assert list(Order.objects.values_list("number", flat=True)) == ["innocent"]
    assert ["left a transaction open" in error for error in errors()] == [True]


@pytest.mark.parametrize("options", [{"ack_policy": "TRANSACTIONAL"}, {"locked": True}])
@pytest.mark.parametrize("begin", ["BEGIN", "set_autocommit"])
def test_a_transaction_left_open_on_another_database_is_an_error(
    committed_orders, drain, options, begin
):
    def work(message: Message) -> None:
        other = connections["other"]
        other.ensure_connection()
        if message.body == "leave" and begin == "BEGIN":
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
        elif message.body == "leave":
            other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        found.append(other.connection.info.transaction_status.name)

    found: list[str] = []
    committed_orders.send_batch(["leave", "innocent"])

    drain(work, max_workers=1, retry=NoRetry(), **options)

    assert found == ["INTRANS", "IDLE"]
    assert ["left a transaction open" in error for error in errors()] == [True]
    assert sorted(outcomes().values()) == ["COMPLETED", "FAILED"]


def test_idle_workers_honour_conn_max_age(committed_orders, consume, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 0)
    pids: list[int] = []

    def use(message: Message) -> None:
        pids.append(run_sql("SELECT pg_backend_pid()")[0][0])

    def gone() -> bool:
        return run_sql("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pids[:1]) == [(0,)]

    consume(use, max_workers=1)
    committed_orders.send(1)

    until(lambda: pids)
    until(gone)


def test_every_thread_gives_its_pooled_connection_back(committed_orders, drain, monkeypatch):
    """Two connections serve four workers and four loops, since none keeps its connection."""
    settings = connections["default"].settings_dict
    options = {**settings["OPTIONS"], "pool": {"min_size": 1, "max_size": 2, "timeout": 10}}
    monkeypatch.setitem(settings, "OPTIONS", options)
    threads: set[int] = set()

    def use(message: Message) -> None:
        threads.add(threading.get_ident())
        run_sql("SELECT 1")
        time.sleep(0.01)

    committed_orders.send_batch(list(range(40)))
    try:
        run = drain(use, max_workers=4, options={"listen": False})
    finally:
        connection.close_pool()

    assert (len(threads), run.subscription.counts.completed) == (4, 40)


def test_a_pool_that_is_too_small_costs_no_message_an_attempt(committed_orders, drain, monkeypatch):
    settings = connections["default"].settings_dict
    options = {**settings["OPTIONS"], "pool": {"min_size": 1, "max_size": 2, "timeout": 0.2}}
    monkeypatch.setitem(settings, "OPTIONS", options)
    ids = committed_orders.send_batch(list(range(12)))
    try:
        drain(
            lambda message: time.sleep(0.3),
            max_workers=8,
            ack_policy="TRANSACTIONAL",
            retry=NoRetry(),
            options={"listen": False},
        )
    finally:
        connection.close_pool()

    assert outcomes() == dict.fromkeys(ids, "COMPLETED")
    assert set(ArchivedMessage.objects.values_list("attempts", flat=True)) == {1}


# Signals


def test_every_step_of_a_message_is_announced(committed_orders, drain, events):
    error = ValueError("once")

    def handle(message: Message) -> None:
        if message.body == "retry" and message.read_ct == 1:
            raise error
        if message.body == "fail":
            raise Reject("bad")
        if message.body == "discard":
            raise Discard

    done, retry, fail, discard = committed_orders.send_batch(["done", "retry", "fail", "discard"])

    drain(handle, retry=Constant(seconds=0))

    def told(name: str) -> list[dict[str, Any]]:
        return [kwargs for event, kwargs in events if event == name]

    def ids(name: str) -> list[int]:
        return sorted(message.id for kwargs in told(name) for message in kwargs["messages"])

    assert ids("messages_completed") == [done, retry]
    assert ids("messages_retried") == [retry]
    assert ids("messages_failed") == [fail]
    assert ids("messages_discarded") == [discard]
    assert sum(kwargs["count"] for kwargs in told("messages_fetched")) == 5
    assert len(told("message_started")) == len(told("message_finished")) == 5
    assert error in [kwargs["error"] for kwargs in told("message_finished")]
    assert all(kwargs["seconds"] >= 0 for kwargs in told("message_finished"))
    assert {kwargs["sender"] for kwargs in told("messages_completed")} == {"orders"}
    assert [name for name, _ in events if name.startswith("consumer_")] == [
        "consumer_started",
        "consumer_stopping",
        "consumer_stopped",
    ]


def test_a_listener_that_raises_stops_no_handler(committed_orders, drain, events):
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("a listener of the user's own")

    pk = committed_orders.send(1)

    with contextlib.ExitStack() as listeners:
        for name in signals.__all__:
            listeners.enter_context(listening(getattr(signals, name), broken))
        drain(lambda message: None)

    assert (outcomes(), live()) == ({pk: "COMPLETED"}, [])


# What remains of a run


def test_a_message_is_freed_without_the_garbage_collector(committed_orders, consume):
    seen: list[weakref.ref[Message]] = []
    committed_orders.send_batch(range(3))
    gc.collect()
    gc.disable()
    try:
        run = consume(lambda message: seen.append(weakref.ref(message)), max_workers=1)
        until(lambda: run.subscription.counts.completed == 3)

        # The worker and the announcer hold the last one until they get another.
        committed_orders.send(3)
        until(lambda: len(seen) == 4)
        until(lambda: not any(ref() for ref in seen[:3]))
    finally:
        gc.enable()


def test_a_context_that_is_kept_knows_its_messages(committed_orders, drain):
    kept: list[Any] = []
    pk = committed_orders.send(1)

    drain(lambda body, context: kept.append(context))

    [context] = kept
    assert [message.id for message in context.messages] == [pk]
    assert (context.attempt, context.deliveries) == (1, 1)
