"""Counters of one consumer process, updated by its signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from django_pgqueue import signals
from django_pgqueue.observability.pages import pages

registry = CollectorRegistry()

_RUN = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_WAIT = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200, 86400)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"pgqueue_{name}", text, labels or ("queue",), registry=registry)


def _histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
    return Histogram(f"pgqueue_{name}", text, labels, registry=registry, buckets=buckets)


#: The counters of messages, by the signal that increases each.
message_counters = {
    signals.messages_fetched: _counter("fetched", "Messages leased."),
    signals.messages_completed: _counter("completed", "Messages done."),
    signals.messages_retried: _counter("retried", "Failed attempts that are tried again."),
    signals.messages_failed: _counter(
        "failed", "Messages that failed for good, dead letters included."
    ),
    signals.messages_exhausted: _counter("exhausted", "Messages whose deliveries ran out."),
    signals.messages_expired: _counter("expired", "Messages archived unhandled, as expired."),
    signals.messages_discarded: _counter("discarded", "Messages that their handler discarded."),
    signals.messages_released: _counter("released", "Messages released unstarted."),
    signals.messages_interrupted: _counter(
        "interrupted", "Messages whose handler was interrupted by a stop."
    ),
    signals.messages_cancelled: _counter(
        "cancelled", "Messages that were cancelled while the consumer held them."
    ),
    signals.leases_lost: _counter(
        "leases_lost", "Messages whose lease the consumer lost to another reader."
    ),
}
#: The label ``outcome`` of ``task_runs``, by signal.
outcomes = {
    signals.messages_completed: "completed",
    signals.messages_retried: "retried",
    signals.messages_failed: "failed",
    signals.messages_discarded: "discarded",
}
database_failed = _counter("database_failed", "Operations that failed.", "operation")
run_seconds = _histogram("run_seconds", "Run times of handlers.", _RUN, "queue")
wait_seconds = _histogram(
    "wait_seconds", "Time from the send to the first delivery.", _WAIT, "queue"
)
task_runs = _counter("task_runs", "Runs of tasks, by their outcome.", *("queue", "task", "outcome"))
task_run_seconds = _histogram("task_run_seconds", "Run times of tasks.", _RUN, *("queue", "task"))


def page() -> tuple[str, bytes]:
    """Return the content type and the text of the ``/metrics`` page."""
    return CONTENT_TYPE_LATEST, generate_latest(registry)


def connect() -> None:
    """Connect the signal receivers, and serve the counters as ``/metrics`` on the health port."""
    pages["/metrics"] = page
    for signal in message_counters:
        signal.connect(_count, dispatch_uid="pgqueue-prometheus")
    signals.message_finished.connect(_finished, dispatch_uid="pgqueue-prometheus")
    signals.database_failed.connect(_database_failed, dispatch_uid="pgqueue-prometheus")
    signals.consumer_started.connect(_started, dispatch_uid="pgqueue-prometheus")


def _count(
    sender: str,
    signal: Signal,
    count: int = 0,
    messages: Sequence[Any] = (),
    receipts: Sequence[Any] = (),
    ids: Sequence[int] = (),
    **kwargs: Any,
) -> None:
    """Count the messages of a signal: its ``count``, ``messages``, ``receipts`` or ``ids``."""
    message_counters[signal].labels(sender).inc(count or len(messages or receipts or ids))
    if outcome := outcomes.get(signal):
        for message in messages:
            if message.task is not None:
                task_runs.labels(sender, message.task, outcome).inc()


def _finished(sender: str, message: Any, seconds: float, **kwargs: Any) -> None:
    run_seconds.labels(sender).observe(seconds)
    if message.task is not None:
        task_run_seconds.labels(sender, message.task).observe(seconds)
    if message.read_ct == 1 and message.first_read_at is not None:
        waited = (message.first_read_at - message.enqueued_at).total_seconds()
        wait_seconds.labels(sender).observe(max(0.0, waited))


def _database_failed(sender: Any, operation: str, **kwargs: Any) -> None:
    database_failed.labels(operation).inc()


def _started(sender: Any, consumer: Any, **kwargs: Any) -> None:
    """Create the counters of all queues at 0: a rate needs a first value."""
    for subscription in consumer.subscriptions:
        for counter in message_counters.values():
            counter.labels(subscription.name)
