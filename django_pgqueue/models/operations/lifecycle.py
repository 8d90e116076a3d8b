"""Queues come and go: create, list, drop, purge."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument, QueueMismatch
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.queue import Queue

__all__ = ["Lifecycle"]

PURGE_BATCH = 50_000


class Lifecycle(Operations[MessageT]):
    """Create, list, drop and purge queues."""

    def create_queue(
        self,
        name: str,
        *,
        unlogged: bool | None = None,
        partition_interval: dt.timedelta | float | None = None,
        retention: dt.timedelta | float | None = None,
        visibility_timeout: int = 30,
        max_deliveries: int | None = None,
        dead_letter_queue: str | Queue | None = None,
        dedup_window: dt.timedelta | float | None = None,
        notify: bool = True,
        using: str | None = None,
    ) -> Queue:
        """Make a queue, or find it: when it exists, it is returned as it is.

        Safe when many processes do it at once, and undone with the transaction around it.

        ``unlogged`` skips the write-ahead log: faster, and empty after a crash of the server.
        ``partition_interval`` (seconds or timedelta) makes a leaf for each such span of time, so
        that old messages go by dropping a leaf. ``retention`` is how long archived messages are
        kept. ``visibility_timeout`` is in seconds. ``max_deliveries`` is how often a message is
        given out before it goes to the ``dead_letter_queue``, or without one to the archive as
        FAILED. ``dedup_window`` is how long a dedup key counts. ``notify=False`` saves the
        notification a send gives to waiting consumers.

        >>> Message.objects.create_queue("orders", visibility_timeout=60).name
        'orders'

        Raises InvalidQueueName, InvalidArgument, and QueueMismatch when the queue exists with
        another storage (``unlogged``, ``partition_interval``) than asked for.
        """
        arguments.queue_name(name)
        alias = Queue.objects.database(using or self._db)
        asked = {
            "visibility_timeout": _at_least(1, visibility_timeout, "visibility_timeout"),
            "max_deliveries": _at_least(1, max_deliveries, "max_deliveries", optional=True),
            "retention": arguments.span(retention, "retention"),
            "partition_interval": arguments.span(partition_interval, "partition_interval"),
            "dedup_window": arguments.span(dedup_window, "dedup_window"),
            "unlogged": bool(unlogged),
            "notify": notify,
            "dead_letter_queue": dead_letter_queue and self.resolve(dead_letter_queue, alias),
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

    def list_queues(self, *, using: str | None = None) -> list[Queue]:
        """Every queue, by name.

        >>> [queue.name for queue in Message.objects.list_queues()]
        ['mails', 'orders']
        """
        alias = Queue.objects.database(using or self._db)
        return list(Queue.objects.using(alias).order_by("name"))

    def drop_queue(self, name: str | Queue, *, using: str | None = None) -> bool:
        """Drop a queue with its messages and its archive; False when there is none.

        Waits for transactions that use its tables, without making anybody wait behind.

        >>> Message.objects.drop_queue("orders")
        True

        Raises QueueBusy when that takes too long, and django.db.models.ProtectedError when
        another queue has it as its dead-letter queue.
        """
        if isinstance(name, Queue):
            using = using or name.alias
            name = name.name
        alias = Queue.objects.database(using or self._db)
        queue = Queue.objects.using(alias).named(name).first()
        if queue is None:
            return False
        queue.delete(using=alias)
        return True

    def purge(
        self,
        queue: str | Queue,
        *,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> int:
        """Delete every live message, ready, delayed or in flight; returns how many.

        The archive stays. Waits for nobody: messages that an open transaction holds locked are
        passed by. Outside a transaction it goes in batches that are kept when it is interrupted.
        ``progress`` is called with the count so far.

        >>> Message.objects.purge("orders")
        12

        Raises QueueNotFound.
        """
        found = self.resolve(queue, using)
        purged = 0
        while True:
            found, [(batch,)] = self._run("purge", found, None, {"batch": PURGE_BATCH})
            purged += batch
            if progress is not None and batch:
                progress(purged)
            if not batch:
                return purged

    acreate_queue = twin(create_queue)
    alist_queues = twin(list_queues)
    adrop_queue = twin(drop_queue)
    apurge = twin(purge)


def _at_least(least: int, value: Any, name: str, *, optional: bool = False) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise InvalidArgument(f"{name} must be a whole number, at least {least}, not {value!r}")
    return value
