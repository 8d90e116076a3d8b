"""Maintenance as operations: :mod:`django_pgqueue.maintenance` does it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from django_pgqueue import maintenance, signals
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.process import Process
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Maintained

__all__ = ["Maintaining"]

#: A consumer without a heartbeat for this long is gone, whatever its settings say.
DEAD_AFTER = dt.timedelta(minutes=10)


class Maintaining(Operations[MessageT]):
    """Partitions by time, and retention."""

    def maintain(
        self,
        queue: str | Queue,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> Maintained:
        found = self.resolve(queue, using)
        return maintenance.maintain(found, patience=patience, stall=stall, progress=progress)

    maintain.__doc__ = maintenance.maintain.__doc__

    def maintain_all(
        self,
        queues: Iterable[str | Queue] | None = None,
        *,
        patience: float = 1.0,
        stall: float = 0.1,
        progress: Callable[[int], None] | None = None,
        using: str | None = None,
    ) -> list[Maintained]:
        """:meth:`maintain` every queue, by name, or those named.

        Besides, what consumers held that are dead for ten minutes is given back. A queue that
        fails does not keep the others from their turn: its ``error`` says why.

        >>> [maintained.queue_name for maintained in Message.objects.maintain_all()]
        ['mails', 'orders']

        Raises QueueNotFound, before anything is done, InvalidArgument, and RuntimeError inside a
        transaction.
        """
        alias = Queue.objects.database(using or self._db)
        chosen = (
            list(Queue.objects.using(alias).order_by("name"))
            if queues is None
            else [self.resolve(queue, alias) for queue in queues]
        )
        for process, count in Process.objects.bury_dead(DEAD_AFTER, using=alias).items():
            signals.leases_rescued.send_robust("maintain", count=count, worker=process)
        return maintenance.maintain_all(chosen, patience=patience, stall=stall, progress=progress)

    def repartition(
        self,
        queue: str | Queue,
        partition_interval: dt.timedelta | float | None,
        *,
        progress: maintenance.Progress | None = None,
        using: str | None = None,
    ) -> bool:
        found = self.resolve(queue, using)
        return maintenance.repartition(found, partition_interval, progress=progress)

    repartition.__doc__ = maintenance.repartition.__doc__

    amaintain = twin(maintain)
    amaintain_all = twin(maintain_all)
    arepartition = twin(repartition)
