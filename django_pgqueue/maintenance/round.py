"""A round of maintenance: its steps, in order, each a function in the file of its name.

Consumers run rounds in the background, ``manage.py pgqueue_maintain`` runs one on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.history.fold import fold
from django_pgqueue.history.forget import forget
from django_pgqueue.history.sample import sample, seconds_until_due
from django_pgqueue.maintenance.drop_partitions import drop_partitions
from django_pgqueue.maintenance.find_expired import find_expired
from django_pgqueue.maintenance.make_partitions import make_partitions
from django_pgqueue.maintenance.prune_attempts import prune_attempts
from django_pgqueue.maintenance.prune_messages import prune_messages
from django_pgqueue.maintenance.queues import StoredQueue
from django_pgqueue.maintenance.repair_wake import repair_wake
from django_pgqueue.maintenance.sweep_keys import sweep_keys
from django_pgqueue.maintenance.work import Work
from django_pgqueue.types import Maintained

__all__ = ["is_lost", "keep_history", "maintain", "maintain_or_tell"]

#: On each queue.
QUEUE_STEPS: tuple[Callable[[Work], None], ...] = (
    repair_wake,
    make_partitions,
    find_expired,
    drop_partitions,
    prune_messages,
    sweep_keys,
    prune_attempts,
)
#: On the history of a database, after its queues. Each takes the alias.
HISTORY_STEPS: tuple[Callable[[str], None], ...] = (sample, fold, forget)

#: Seconds; a timeout has to fit into an integer of milliseconds.
LONGEST = 100_000


def maintain(
    queue: StoredQueue,
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

    >>> queue("orders").maintain().dropped
    120000

    Raises QueueNotFound, InvalidArgument, and RuntimeError inside a transaction.
    """
    if not 0 <= patience < LONGEST:
        raise InvalidArgument(f"patience must be a number of seconds, not {patience!r}")
    if not 0.001 <= stall < LONGEST:
        raise InvalidArgument(f"stall must be seconds, at least 0.001, not {stall!r}")
    fresh = queue.reread()
    work = Work(fresh, patience, stall, progress or (lambda removed: None))
    began = time.monotonic()
    for step in QUEUE_STEPS:
        step(work)
    maintained = work.done(seconds=time.monotonic() - began)
    signals.queue_maintained.send_robust(fresh.name, queue=fresh, maintained=maintained)
    return maintained


def maintain_or_tell(
    queue: StoredQueue,
    *,
    caught: type[Exception] = Error,
    patience: float = 1.0,
    stall: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> Maintained | None:
    """:func:`maintain` for one queue of many, which must not stop the others.

    Sends ``maintenance_failed`` when the queue fails with ``caught``; the ``error`` of the result
    says why. Returns None when the queue was dropped meanwhile.

    Raises as :func:`maintain`, but for ``caught`` and QueueNotFound, and the database's error when
    the connection is lost.
    """
    try:
        return maintain(queue, patience=patience, stall=stall, progress=progress)
    except QueueNotFound:
        return None
    except caught as error:
        if isinstance(error, Error) and is_lost(queue.alias):
            raise
        signals.maintenance_failed.send_robust(queue.name, queue=queue, error=error)
        return Maintained(queue_name=queue.name, error=str(error).strip() or type(error).__name__)


def keep_history(alias: str) -> float:
    """Run the steps on the history, if one is kept. Of two processes at once one leaves it to the
    other. Returns the seconds until the next run is due."""
    if settings.HISTORY_SECONDS is None:
        return LONGEST
    for step in HISTORY_STEPS:
        step(alias)
    return seconds_until_due(alias)


def is_lost(alias: str) -> bool:
    """Whether this thread's connection is gone, rather than that a statement failed."""
    connection = connections[alias].connection
    return connection is None or bool(connection.closed)
