"""Maintenance as operations; :mod:`django_pgqueue.maintenance` does it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from django_pgqueue import maintenance, signals
from django_pgqueue.conf import settings
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Maintained

__all__ = ["keep_history", "maintain", "maintain_all", "repartition"]

#: A consumer without a heartbeat for this long is gone, whatever its settings say.
DEAD_AFTER = dt.timedelta(minutes=10)


def maintain(
    queue: OpenQueue,
    *,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> Maintained:
    return maintenance.maintain(queue.source, patience=patience, stall=stall, progress=progress)


def maintain_all(
    alias: str,
    queues: Iterable[str | Queue] | None = None,
    *,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> list[Maintained]:
    """``maintain`` every queue, by name, or those listed.

    Also gives back the messages of consumers without a heartbeat for ten minutes and, with all
    queues, keeps their history (``PGQUEUE["HISTORY_SECONDS"]``). A queue that
    fails does not keep the others from their turn: its ``error`` says why.

    Arguments:
        queues: names or queues; None: all of the database.
        patience: seconds that a step tries for a lock before it is left to the next round.
        stall: seconds that other sessions may have to wait behind one try.
        progress: called with the number of messages removed so far.

    >>> [maintained.queue_name for maintained in Message.objects.maintain_all()]
    ['mails', 'orders']

    Raises QueueNotFound, before anything is done, InvalidArgument, and RuntimeError inside a
    transaction.
    """
    chosen = (
        list(Queue.objects.using(alias).order_by("name"))
        if queues is None
        else [Queue.objects.resolve(queue, alias) for queue in queues]
    )
    for process, count in Process.objects.reap(DEAD_AFTER, using=alias).items():
        signals.leases_rescued.send_robust("maintain", count=count, worker=process)
    done = maintenance.maintain_all(chosen, patience=patience, stall=stall, progress=progress)
    if queues is None:
        keep_history(alias)
    return done


def keep_history(alias: str) -> None:
    """Note what every queue holds, and keep the history small; nothing when none is kept."""
    if settings.HISTORY_SECONDS is not None:
        storage = Queue.objects.using(alias).order_by().values_list("unlogged", flat=True)
        maintenance.keep_history(alias, list(storage))


def repartition(
    queue: OpenQueue,
    partition_interval: dt.timedelta | float | None,
    *,
    progress: maintenance.Progress | None = None,
) -> bool:
    return maintenance.repartition(queue.source, partition_interval, progress=progress)


maintain.__doc__ = maintenance.maintain.__doc__
repartition.__doc__ = maintenance.repartition.__doc__
