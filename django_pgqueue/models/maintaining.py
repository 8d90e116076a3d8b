"""The operations that run maintenance: see :mod:`django_pgqueue.maintenance`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from django_pgqueue import maintenance, signals
from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Maintained

__all__ = ["maintain", "maintain_all", "repartition"]

#: A consumer without a heartbeat for this long is dead, even if its own settings allow more.
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
    """Run ``maintain`` for every queue, by name, or for the given queues.

    Also gives back the messages of consumers without a heartbeat for ten minutes. For all queues
    it also maintains their history (``PGQUEUE["HISTORY_SECONDS"]``). If a queue fails, its
    ``error`` says why, and the other queues are still maintained.

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
    done: list[Maintained] = []

    def show(removed: int) -> None:
        if progress is not None:
            progress(sum(each.removed for each in done) + removed)

    for queue in chosen:
        maintained = maintenance.maintain_or_tell(
            queue, patience=patience, stall=stall, progress=show
        )
        if maintained is not None:
            done.append(maintained)
    if queues is None:
        maintenance.keep_history(alias)
    return done


def repartition(
    queue: OpenQueue,
    partition_interval: dt.timedelta | float | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    return maintenance.repartition(queue.source, partition_interval, progress=progress)


maintain.__doc__ = maintenance.maintain.__doc__
repartition.__doc__ = maintenance.repartition.__doc__
