"""Counters of one consumer process, updated by its signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from django_pgqueue import signals
from django_pgqueue.pages import pages

__all__ = ["connect", "page", "registry"]

registry = CollectorRegistry()

_RUN = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
_WAIT = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200, 86400)


def _counter(name: str, text: str) -> Counter:
    return Counter(f"pgqueue_{name}", text, ["queue"], registry=registry)


fetched = _counter("fetched", "Messages leased.")
completed = _counter("completed", "Messages done.")
retried = _counter("retried", "Failed attempts that are tried again.")
failed = _counter("failed", "Messages that failed for good, dead letters included.")
exhausted = _counter("exhausted", "Messages whose deliveries ran out.")
discarded = _counter("discarded", "Messages that their handler discarded.")
released = _counter("released", "Messages given back unstarted.")
interrupted = _counter("interrupted", "Messages whose handler was interrupted by a stop.")
cancelled = _counter("cancelled", "Messages that were cancelled while the consumer held them.")
leases_lost = _counter("leases_lost", "Leases that ran out while the consumer held them.")
database_failed = Counter(
    "pgqueue_database_failed", "Operations that failed.", ["operation"], registry=registry
)
run_seconds = Histogram(
    "pgqueue_run_seconds", "Handler runs.", ["queue"], registry=registry, buckets=_RUN
)
wait_seconds = Histogram(
    "pgqueue_wait_seconds",
    "Time from the send to the first delivery.",
    ["queue"],
    registry=registry,
    buckets=_WAIT,
)
task_runs = Counter(
    "pgqueue_task_runs",
    "Runs of tasks, by their outcome.",
    ["queue", "task", "outcome"],
    registry=registry,
)
task_run_seconds = Histogram(
    "pgqueue_task_run_seconds", "Runs of tasks.", ["queue", "task"], registry=registry, buckets=_RUN
)


def page() -> tuple[str, bytes]:
    """Content type and text of the ``/metrics`` page."""
    return CONTENT_TYPE_LATEST, generate_latest(registry)


def connect() -> None:
    """Connect the signal receivers, and serve the counters as ``/metrics`` on the health port."""
    pages["/metrics"] = page
    for signal, listener in (
        (signals.messages_fetched, _fetched),
        (signals.message_finished, _finished),
        (signals.messages_completed, _completed),
        (signals.messages_retried, _retried),
        (signals.messages_failed, _failed),
        (signals.messages_exhausted, _exhausted),
        (signals.messages_discarded, _discarded),
        (signals.messages_released, _released),
        (signals.messages_interrupted, _interrupted),
        (signals.messages_cancelled, _cancelled),
        (signals.leases_lost, _lost),
        (signals.database_failed, _database_failed),
        (signals.consumer_started, _started),
    ):
        signal.connect(listener, dispatch_uid=f"pgqueue-prometheus-{listener.__name__}")


def _fetched(sender: str, count: int, **kwargs: Any) -> None:
    fetched.labels(sender).inc(count)


def _finished(sender: str, message: Any, seconds: float, **kwargs: Any) -> None:
    run_seconds.labels(sender).observe(seconds)
    if message.task is not None:
        task_run_seconds.labels(sender, message.task).observe(seconds)
    if message.read_ct == 1 and message.first_read_at is not None:
        waited = (message.first_read_at - message.enqueued_at).total_seconds()
        wait_seconds.labels(sender).observe(max(0.0, waited))


def _completed(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    completed.labels(sender).inc(len(messages))
    _count_tasks(sender, messages, "completed")


def _retried(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    retried.labels(sender).inc(len(messages))
    _count_tasks(sender, messages, "retried")


def _failed(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    failed.labels(sender).inc(len(messages))
    _count_tasks(sender, messages, "failed")


def _exhausted(sender: str, receipts: Sequence[Any], **kwargs: Any) -> None:
    exhausted.labels(sender).inc(len(receipts))


def _discarded(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    discarded.labels(sender).inc(len(messages))
    _count_tasks(sender, messages, "discarded")


def _released(sender: str, count: int, **kwargs: Any) -> None:
    released.labels(sender).inc(count)


def _interrupted(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    interrupted.labels(sender).inc(len(messages))


def _cancelled(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    cancelled.labels(sender).inc(len(messages))


def _lost(sender: str, messages: Sequence[Any], **kwargs: Any) -> None:
    leases_lost.labels(sender).inc(len(messages))


def _count_tasks(sender: str, messages: Sequence[Any], outcome: str) -> None:
    for message in messages:
        if message.task is not None:
            task_runs.labels(sender, message.task, outcome).inc()


def _database_failed(sender: Any, operation: str, **kwargs: Any) -> None:
    database_failed.labels(operation).inc()


def _started(sender: Any, consumer: Any, **kwargs: Any) -> None:
    """Create the counters of all queues with 0: a rate needs a first value."""
    for subscription in consumer.subscriptions:
        for counter in (fetched, completed, retried, failed, exhausted, leases_lost):
            counter.labels(subscription.name)
