"""Maintains queues: makes partitions ahead, removes what was archived long enough ago.

Consumers do so in the background, and ``manage.py pgqueue_maintain`` on demand.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable

from django.db import Error, connections
from django.utils.timezone import is_naive, make_aware

from django_pgqueue import signals
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.ahead import make_partitions
from django_pgqueue.maintenance.dropping import drop_expired
from django_pgqueue.maintenance.pruning import prune, sweep_keys
from django_pgqueue.maintenance.queues import OpenQueue
from django_pgqueue.maintenance.round import Round
from django_pgqueue.types import Maintained

__all__ = ["is_lost", "maintain", "maintain_all", "run_round"]

#: Seconds; a timeout has to fit into an integer of milliseconds.
LONGEST = 100_000

REPAIR_WAKE = (
    "SELECT pgqueue_repair_wake(%s) "
    "WHERE has_function_privilege('pgqueue_repair_wake(integer)', 'EXECUTE')"
)


def maintain(
    queue: OpenQueue,
    *,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> Maintained:
    """Maintain one queue: make partitions ahead, remove messages whose retention is over.

    An archived message is removed, body and outcome, when it was archived longer ago than
    ``queue.retention``. Partitions by time are dropped as a whole once all in them may go; other
    messages are deleted in small batches. A message that is not archived is never touched, and one
    that a lake waits for is kept. Each step is a transaction of its own: an interruption leaves
    what was done, and the next call goes on. It may run beside everything, other calls included.

    ``patience`` is for how many seconds a step tries to get its locks before it is left to the next
    call, ``stall`` for how many seconds at most other sessions wait behind such a try, at least
    0.001. ``progress`` is called again and again with the number of messages removed so far.

    >>> Message.objects.maintain("orders").dropped
    120000

    Raises QueueNotFound, InvalidArgument, and RuntimeError inside a transaction.
    """
    if not 0 <= patience < LONGEST:
        raise InvalidArgument(f"patience must be a number of seconds, not {patience!r}")
    if not 0.001 <= stall < LONGEST:
        raise InvalidArgument(f"stall must be seconds, at least 0.001, not {stall!r}")
    fresh = queue.reread()
    maintained = run_round(Round(fresh, patience, stall, progress or (lambda removed: None)))
    signals.queue_maintained.send_robust(fresh.name, queue=fresh, maintained=maintained)
    return maintained


def maintain_all(
    queues: Iterable[OpenQueue],
    *,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> list[Maintained]:
    """:func:`maintain` each of these queues.

    A queue that fails does not keep the others from their turn: its ``error`` says why. One that
    is dropped meanwhile is left out. ``progress`` is called with the removed messages of all.

    Raises InvalidArgument, RuntimeError inside a transaction, and the database's error when the
    connection is lost.
    """
    done: list[Maintained] = []

    def show(removed: int) -> None:
        if progress is not None:
            progress(sum(each.removed for each in done) + removed)

    for queue in queues:
        try:
            maintained = maintain(queue, patience=patience, stall=stall, progress=show)
        except QueueNotFound:
            continue
        except Error as error:
            if is_lost(queue.alias):
                raise
            signals.maintenance_failed.send_robust(queue.name, queue=queue, error=error)
            maintained = Maintained(queue_name=queue.name, error=str(error).strip())
        done.append(maintained)
    return done


def is_lost(alias: str) -> bool:
    """Whether this thread's connection is gone, rather than that a statement failed."""
    connection = connections[alias].connection
    return connection is None or bool(connection.closed)


def run_round(work: Round) -> Maintained:
    """Do all steps for one queue."""
    began = time.monotonic()
    queue = work.queue
    before, refused = None, False
    # Without its sequence a queue's consumers are woken too often.
    work.value(REPAIR_WAKE, [queue.pk])
    foreign: tuple[str, ...] = ()
    if queue.partition_interval is not None:
        make_partitions(work, queue.partition_interval)
    if queue.retention is not None:
        before, refused = _expired_before(work, queue.retention)
        foreign = tuple(lakes.foreign_lakes(work))
        if before is not None and not foreign:
            drop_expired(work, before)
            prune(work, before)
    sweep_keys(work)
    return Maintained(
        queue_name=queue.name,
        before=before,
        refused=refused,
        foreign_lakes=foreign,
        seconds=time.monotonic() - began,
        **work.counts,  # type: ignore[arg-type]
    )


def _expired_before(work: Round, retention: dt.timedelta) -> tuple[dt.datetime | None, bool]:
    """The moment before which archived messages may go, and whether a listener refused.

    A listener of ``retention_due`` that raises has refused: it may have meant to.
    """
    try:
        before = work.now() - retention
    except OverflowError:
        return None, False
    queue = work.queue
    for _, answer in signals.retention_due.send_robust(queue.name, queue=queue, before=before):
        if answer is False or isinstance(answer, Exception):
            return None, True
        if isinstance(answer, dt.datetime):
            before = min(before, make_aware(answer) if is_naive(answer) else answer)
    return before, False
