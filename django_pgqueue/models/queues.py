"""The operations on queues: create, list, drop, and the metrics of all."""

from __future__ import annotations

import datetime as dt

from django_pgqueue import arguments
from django_pgqueue.engine.metrics import measuring
from django_pgqueue.errors import InvalidArgument, QueueInUse, QueueMismatch
from django_pgqueue.models.queue import Queue
from django_pgqueue.runner import runner
from django_pgqueue.types import Metrics

__all__ = ["create_queue", "drop_queue", "list_queues", "metrics_all"]


def create_queue(
    alias: str,
    name: str,
    *,
    unlogged: bool | None = None,
    partition_interval: dt.timedelta | float | None = None,
    retention: dt.timedelta | float | None = None,
    visibility_timeout: int = 30,
    max_deliveries: int = 20,
    dead_letter_queue: str | Queue | None = None,
    dedup_window: dt.timedelta | float | None = None,
    age_limit: dt.timedelta | float | None = None,
    notify: bool = True,
) -> Queue:
    """Make a queue. If it exists, return it unchanged.

    Safe with concurrent calls. Part of the caller's transaction.

    Arguments:
        name: 1 to 63 of the characters ``A-Z a-z 0-9 _ . -``, unique whatever its case.
        unlogged: skip the write-ahead log: faster, but the queue is empty after a server crash.
        partition_interval: seconds or timedelta covered by a partition; old messages are removed by
            dropping partitions.
        retention: seconds or timedelta for which archived messages are kept; None: for ever.
        visibility_timeout: seconds that a message stays hidden from other readers once it is read.
        max_deliveries: deliveries of a message before it is moved to the ``dead_letter_queue``, or
            without one to the archive as FAILED.
        dead_letter_queue: a queue of the same database, or its name.
        dedup_window: seconds or timedelta for which a dedup key counts; None: five minutes.
        age_limit: seconds or timedelta for which a message may be readable before the admin raises
            an alert; None: five minutes.
        notify: whether a send notifies waiting consumers; with False they find messages by polling.

    >>> Message.objects.create_queue("orders", visibility_timeout=60).name
    'orders'

    Raises InvalidQueueName, InvalidArgument, QueueNotFound for a missing dead-letter queue, and
    QueueMismatch if the queue exists with another storage (``unlogged``, ``partition_interval``).
    """
    arguments.queue_name(name)
    if not isinstance(notify, bool):
        raise InvalidArgument(f"notify must be True or False, not {notify!r}")
    asked = {
        "visibility_timeout": arguments.count(visibility_timeout, "visibility_timeout"),
        "max_deliveries": arguments.count(max_deliveries, "max_deliveries"),
        "retention": arguments.span(retention, "retention"),
        "partition_interval": arguments.span(partition_interval, "partition_interval"),
        "dedup_window": arguments.span(dedup_window, "dedup_window"),
        "age_limit": arguments.span(age_limit, "age_limit"),
        "unlogged": bool(unlogged),
        "notify": notify,
        "dead_letter_queue": None
        if dead_letter_queue is None
        else Queue.objects.resolve(dead_letter_queue, alias),
    }
    queue, created = Queue.create(name, alias, **asked)
    if not created:
        for setting, value in (
            ("unlogged", unlogged),
            ("partition_interval", asked["partition_interval"]),
        ):
            if value is not None and getattr(queue, setting) != value:
                raise QueueMismatch(queue.name, setting, getattr(queue, setting), value)
    return queue


def list_queues(alias: str) -> list[Queue]:
    """Every queue, by name.

    >>> [queue.name for queue in Message.objects.list_queues()]
    ['mails', 'orders']
    """
    return list(Queue.objects.using(alias).order_by("name"))


def drop_queue(alias: str, name: str | Queue) -> bool:
    """Drop a queue with its messages and its archive. Returns False if there is none.

    Waits up to ``LOCK_SECONDS`` for transactions that use its tables, and does not block other
    sessions while it waits.

    >>> Message.objects.drop_queue("orders")
    True

    Raises QueueBusy if that takes too long, and QueueInUse if it is the dead-letter queue of
    another queue.
    """
    if isinstance(name, Queue):
        alias, name = name.alias, name.name
    queue = Queue.objects.using(alias).named(name).first()
    if queue is None:
        return False
    sources = ", ".join(queue.sources.order_by("name").values_list("name", flat=True))
    if sources:
        raise QueueInUse(queue.name, sources)
    queue.delete(using=alias)
    return True


def metrics_all(alias: str) -> list[Metrics]:
    """The metrics of every queue, by name.

    Runs one statement. With more queues, smaller counts are estimated. Counts of archived messages
    come from statistics, which lag by seconds. Ages are those of the counted messages and of the
    last in line.

    >>> [each.queue_name for each in Message.objects.metrics_all()]
    ['mails', 'orders']
    """
    return measuring.metrics_of_all(runner(alias))
