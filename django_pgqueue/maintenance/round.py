"""A round of maintenance: its steps in order.

Consumers run rounds in the background; ``manage.py pgqueue_maintain`` runs one on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.maintenance.make_partitions import make_partitions
from django_pgqueue.maintenance.retention import remove_expired, tell_losses
from django_pgqueue.maintenance.stored_queue import StoredQueue
from django_pgqueue.maintenance.upkeep import (
    prune_attempts,
    prune_batches,
    prune_steps,
    repair_wake,
    sweep_keys,
    sweep_slots,
)
from django_pgqueue.maintenance.work import Work
from django_pgqueue.types import Maintained

#: The steps on each queue.
QUEUE_STEPS: tuple[Callable[[Work], None], ...] = (
    repair_wake,
    make_partitions,
    remove_expired,
    tell_losses,
    sweep_keys,
    sweep_slots,
    prune_attempts,
    prune_steps,
    prune_batches,
)

#: The longest timeout in seconds: the server stores timeouts as integers of milliseconds.
LONGEST = 100_000


def maintain(
    queue: StoredQueue,
    *,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> Maintained:
    """Maintain one queue: make partitions ahead, remove messages whose retention is over.

    An archived message is removed, body and outcome, once it has been archived for longer than
    ``queue.retention``. Partitions by time are dropped as a whole when all their messages may be
    removed; other messages are deleted in small batches. Messages stay if they are not archived, or
    if a lake waits for them. Each removal is a transaction: after an interruption the next call
    continues. It may run at the same time as any other operation, including itself.

    Arguments:
        patience: seconds to try for a lock, before a step is left to the next call.
        stall: the most seconds that one try waits for a lock, while other sessions wait behind it;
            at least 0.001.
        progress: called with the number of messages removed so far.

    >>> queue("orders").maintain().dropped
    120000

    Raises QueueNotFound, InvalidArgument, and RuntimeError inside a transaction.
    """
    if not 0 <= patience < LONGEST:
        raise InvalidArgument(f"patience must be a number of seconds, at least 0, not {patience!r}")
    if not 0.001 <= stall < LONGEST:
        raise InvalidArgument(f"stall must be a number of seconds, at least 0.001, not {stall!r}")
    fresh = queue.reread()
    work = Work(fresh, patience, stall, progress or (lambda removed: None))
    began = time.monotonic()
    for step in QUEUE_STEPS:
        step(work)
    maintained = Maintained(
        queue_name=fresh.name,
        before=work.before,
        refused=work.refused,
        foreign_lakes=work.foreign_lakes,
        seconds=time.monotonic() - began,
        **work.counts,  # type: ignore[arg-type]
    )
    signals.queue_maintained.send_robust(fresh.name, queue=fresh, maintained=maintained)
    return maintained


def maintain_or_tell(
    queue: StoredQueue, *, caught: type[Exception] = Error, **options: Any
) -> Maintained | None:
    """Call :func:`maintain` for one of many queues; its errors do not stop the other calls.

    An error of the class ``caught`` is sent as ``maintenance_failed``, and is the result's error.
    Returns None if the queue was dropped. Raises the database's error if the connection is lost.
    """
    try:
        return maintain(queue, **options)
    except QueueNotFound:
        return None
    except caught as error:
        if isinstance(error, Error) and is_lost(queue.alias):
            raise
        signals.maintenance_failed.send_robust(queue.name, queue=queue, error=error)
        return Maintained(queue_name=queue.name, error=str(error).strip() or type(error).__name__)


def is_lost(alias: str) -> bool:
    """Whether this thread's connection is closed, so that no further statement can succeed."""
    connection = connections[alias].connection
    return connection is None or bool(connection.closed)
