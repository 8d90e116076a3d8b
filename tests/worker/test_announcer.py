"""Receivers of signals, and log handlers, that are slow, raise or never return."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError

from django_pgqueue import signals
from django_pgqueue.models import BoundQueue, Message, Process
from django_pgqueue.retries import NoRetry
from tests.hearing import heard, listening
from tests.waiting import until
from tests.worker.consuming import leases, outcomes

pytestmark = pytest.mark.django_db(transaction=True)


class Slow(logging.Handler):
    """A log handler that waits for a network."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.003)


@pytest.fixture
def slow_log() -> Iterator[None]:
    logger, handler = logging.getLogger("django_pgqueue"), Slow()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """A receiver of ``messages_completed`` that does not return until the event is set."""
    go = threading.Event()
    with listening(signals.messages_completed, lambda **kwargs: go.wait(60)):
        yield go
        go.set()


def slow_receiver(messages: list[Message], **kwargs: Any) -> None:
    time.sleep(0.003 * len(messages))


@pytest.mark.parametrize("by", ["log lines", "a receiver"])
@pytest.mark.usefixtures("slow_log")
def test_slow_receivers_cause_no_second_delivery(committed_orders, drain, by):
    """They take several times as long as a lease."""
    runs: Counter[int] = Counter()
    ids = committed_orders.send_batch(list(range(2000)))

    def work(message: Message) -> None:
        runs[message.id] += 1
        if by == "log lines":
            raise ValueError("as told")

    with listening(signals.messages_completed, slow_receiver):
        drain(work, visibility_timeout=2, retry=NoRetry())

    assert runs == Counter(ids)
    assert len(outcomes()) == 2000


def test_outcomes_are_written_and_reading_stops_while_a_receiver_does_not_return(
    committed_orders, consume, stuck
):
    runs: Counter[int] = Counter()
    ids = committed_orders.send_batch(list(range(2000)))

    run = consume(
        lambda message: runs.update([message.id]), visibility_timeout=1, fetch_batch_size=100
    )
    subscription = run.subscription
    until(lambda: subscription.counts.completed >= subscription.most_ended)
    until(lambda: not subscription.busy)
    done = len(outcomes())
    time.sleep(1.2)  # longer than a lease
    held = subscription.counts.fetched, len(outcomes()), leases()
    stuck.set()
    until(lambda: len(outcomes()) == 2000)

    assert held == (done, done, 0)
    assert done < subscription.most_ended + 2 * subscription.buffer.capacity
    assert runs == Counter(ids)


def test_a_receiver_that_does_not_return_stops_no_heartbeat_and_no_lease(
    committed_orders, consume, held, stuck
):
    def work(message: Message) -> None:
        if message.body == 2:
            held.work(message)

    committed_orders.send(1)
    run = consume(work, visibility_timeout=0.6)
    until(lambda: run.subscription.counts.completed == 1)
    committed_orders.send(2)
    held.until_begun()
    [before] = Process.objects.values_list("heartbeat_at", flat=True)

    until(lambda: Process.objects.filter(heartbeat_at__gt=before).exists())
    time.sleep(0.7)

    assert committed_orders.read() == []


@pytest.mark.parametrize("again", [False, True], ids=["graceful timeout", "second signal"])
def test_a_stop_does_not_wait_for_a_receiver_that_does_not_return(
    committed_orders, consume, stuck, again
):
    ids = committed_orders.send_batch(list(range(100)))
    with heard(signals.announcements_dropped) as dropped:
        run = consume(lambda message: None, options={"graceful_timeout": 600.0 if again else 0.5})
        until(lambda: run.subscription.counts.completed)
        run.consumer.stop()
        until(lambda: not run.consumer.fetcher.is_alive())
        if again:
            run.consumer.abort()
        run.wait(10)

    done = outcomes()
    assert len(done) + committed_orders.metrics().ready == len(ids)
    assert (leases(), Process.objects.count()) == (0, 0)
    assert [each["count"] for each in dropped] == [run.consumer._announcer.dropped]
    assert len(done) <= dropped[0]["count"]


def test_a_slow_log_is_written_to_its_end_at_a_stop(committed_orders, consume, slow_log, caplog):
    committed_orders.send_batch(list(range(200)))

    def fail(message: Message) -> None:
        raise ValueError("as told")

    run = consume(fail, retry=NoRetry())
    until(lambda: run.subscription.counts.failed == 200)
    run.stop()

    assert caplog.text.count("failed for good after 1 deliveries") == 200
    assert "dropped" not in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_receiver_that_raises_ends_nothing(committed_orders, consume, error):
    def broken(**kwargs: Any) -> None:
        raise error

    with listening(signals.messages_completed, broken):
        run = consume(lambda message: None)
        for number in (1, 2):
            committed_orders.send(number)
            until(lambda number=number: run.subscription.counts.completed == number)
            until(lambda: not run.consumer._announcer.unannounced["orders"])

    assert len(outcomes()) == 2


def test_signals_of_a_message_keep_their_order(committed_orders, drain, events):
    committed_orders.send_batch(list(range(50)))

    drain(lambda message: None if message.read_ct > 1 else message.nack(delay=0))

    told: dict[int, list[str]] = {}
    for name, kwargs in events:
        for message in kwargs.get("messages", ()):
            told.setdefault(message.id, []).append(name)
    assert set(map(tuple, told.values())) == {("messages_retried", "messages_completed")}


def test_messages_keep_their_leases_until_their_outcomes_are_written(
    committed_orders, consume, monkeypatch
):
    """The database refuses outcomes for several times the length of a lease."""
    runs: Counter[int] = Counter()
    ids = committed_orders.send_batch(list(range(20)))
    settle, until_then = BoundQueue.settle, time.monotonic() + 3

    def refuse(queue: BoundQueue, *args: Any, **options: Any) -> Any:
        if time.monotonic() < until_then:
            raise OperationalError("no outcomes now")
        return settle(queue, *args, **options)

    monkeypatch.setattr(BoundQueue, "settle", refuse)
    run = consume(lambda message: runs.update([message.id]), visibility_timeout=0.8)

    until(lambda: sorted(outcomes()) == ids)
    assert runs == Counter(ids)
    assert run.subscription.counts.lost == 0


@pytest.mark.parametrize("policy", ["ACK", "NACK_ON_ERROR", "MANUAL"])
@pytest.mark.parametrize("name", ["message_finished", "error_ignored"])
def test_a_slow_receiver_in_the_handlers_thread_holds_up_no_outcome(
    committed_orders, consume, policy, name
):
    """It takes longer than a lease, after the handler."""
    runs: Counter[int] = Counter()
    pk = committed_orders.send(1)
    go = threading.Event()

    def work(message: Message) -> None:
        runs[message.id] += 1
        message.ack()
        raise ValueError("as told")

    with listening(getattr(signals, name), lambda **kwargs: go.wait(30)):
        run = consume(work, ack_policy=policy, visibility_timeout=0.5)
        until(lambda: outcomes() == {pk: "COMPLETED"})
        go.set()
        run.stop()

    assert runs == {pk: 1}


@pytest.mark.parametrize("name", ["message_started", "message_finished", "messages_completed"])
@pytest.mark.parametrize(
    "options", [{}, {"ack_policy": "TRANSACTIONAL"}, {"locked": True}, {"ack_policy": "ACK_FIRST"}]
)
def test_a_receiver_that_raises_system_exit_ends_no_worker(committed_orders, drain, name, options):
    ids = committed_orders.send_batch(list(range(5)))

    def leave(**kwargs: Any) -> None:
        raise SystemExit

    with listening(getattr(signals, name), leave):
        drain(lambda message: None, max_workers=1, **options)

    assert outcomes() == dict.fromkeys(ids, "COMPLETED")


@pytest.mark.parametrize("options", [{"ack_policy": "TRANSACTIONAL"}, {"locked": True}])
def test_a_stuck_receiver_stops_no_worker_whose_ack_commits_with_its_work(
    committed_orders, consume, stuck, options
):
    ids = committed_orders.send_batch(list(range(5)))
    retried = []

    with listening(signals.messages_retried, lambda **kwargs: retried.append(kwargs)):
        run = consume(lambda message: None, max_workers=1, timeout=1, **options)
        until(lambda: outcomes() == dict.fromkeys(ids, "COMPLETED"))
        stuck.set()
        run.stop()

    assert not retried
