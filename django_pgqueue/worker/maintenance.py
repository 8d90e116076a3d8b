"""The maintenance loop: in each database one consumer process maintains the queues, and runs the
bulk actions that users start in the admin."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from uuid import uuid4

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.errors import QueueBusy
from django_pgqueue.history.keep import keep_history
from django_pgqueue.maintenance import lease, maintain_or_tell
from django_pgqueue.models import AuditEntry, BulkAction, Queue
from django_pgqueue.worker.loop import Loop, for_each

#: Maximum length of the maintenance lease, in seconds.
_TERM = 30.0
#: Maximum seconds between two rounds of a queue.
_LONGEST_PAUSE = 3600.0
#: Maximum seconds until the history is tried again after an error.
_HISTORY = 60.0


def pause(queue: Queue, least: float) -> float:
    """The seconds between two rounds of one queue, at least ``least``.

    The pause is a small part of the queue's retention or partition interval: a queue that keeps
    messages for a month need not be searched every minute.

    >>> import datetime as dt
    >>> pause(Queue(retention=dt.timedelta(hours=1), partition_interval=dt.timedelta(days=1)), 60)
    180.0
    """
    lengths = [_LONGEST_PAUSE]
    if queue.retention is not None:
        lengths.append(queue.retention.total_seconds() / 20)
    if queue.partition_interval is not None:
        lengths.append(queue.partition_interval.total_seconds() / 4)
    return max(least, min(lengths))


class _Stopped(BaseException):
    """Ends a database's round early: this process stops, or does not hold the lease."""


class Maintenance(Loop):
    """Holds the maintenance lease in each database, or waits for it.

    Its connections have no time limit, because reading a large partition takes long. If one falls
    silent the lease expires, and another process takes over.
    """

    def __init__(self, aliases: Iterable[str]) -> None:
        super().__init__("maintenance")
        self._aliases = sorted(aliases)
        self._every = float(settings.MAINTENANCE_SECONDS or 0)
        self._term = min(_TERM, max(1.0, self._every * 3))
        self._token = uuid4()
        self._first = True
        #: By database: when its lease was last extended. Only leases that this process holds.
        self._held_at: dict[str, float] = {}
        #: When each queue was last maintained.
        self._rounds: dict[tuple[str, int], float] = {}
        #: By database: when its history is due.
        self._history_due: dict[str, float] = {}
        #: By database: when this process may try to take the lease again after a failed round.
        self._aside: dict[str, float] = {}

    def start(self) -> None:
        """Start, unless the setting MAINTENANCE_SECONDS is 0 or None."""
        if self._every > 0:
            super().start()

    def tick(self) -> float:
        waits = [self._every, self._term / 3]
        if self._first:
            # The first round is delayed, so that a short-lived consumer runs none.
            self._first = False
            return min(waits)

        def work(alias: str) -> None:
            with contextlib.suppress(_Stopped):
                self._maintain_database(alias)
                if alias in self._held_at:
                    wait = BulkAction.objects.drive(using=alias)
                    waits.extend([] if wait is None else [wait])

        for_each(self._aliases, work)
        return min(waits)

    def leave(self) -> None:
        """Release the maintenance leases, so that another process can take them."""
        for alias in list(self._held_at):
            lease.leave(self._token, using=alias)
        self._held_at.clear()

    def _maintain_database(self, alias: str) -> None:
        if time.monotonic() < self._aside.get(alias, 0.0):
            return
        self._hold(alias)
        with contextlib.suppress(QueueBusy):
            Queue.objects.finish_drops(alias, seconds=1)
        for queue in Queue.objects.using(alias).order_by("name"):
            last = self._rounds.get((alias, queue.pk))
            if last is None or time.monotonic() - last >= pause(queue, self._every):
                self._keep(alias)
                self._maintain(queue)
        self._keep(alias)
        self._keep_history(alias)

    def _keep_history(self, alias: str) -> None:
        if time.monotonic() < self._history_due.get(alias, 0.0):
            return
        wait = min(self._every, _HISTORY)
        try:
            wait = min(self._every, keep_history(alias))
            AuditEntry.objects.prune(alias)
        except Error as error:
            signals.database_failed.send_robust(
                self.name, operation="history", error=error, wait=wait
            )
            connections[alias].close()
        self._history_due[alias] = time.monotonic() + wait

    def _maintain(self, queue: Queue) -> None:
        """Run a round for one queue. If it fails, release the lease and raise _Stopped."""
        alias = queue.alias
        maintained = maintain_or_tell(
            queue, caught=Exception, progress=lambda removed: self._keep(alias)
        )
        self._rounds[alias, queue.pk] = time.monotonic()
        if maintained is None or not maintained.error:
            return
        # This process may lack rights or the newest code, so let another one try. Each process
        # tries once per `_every`, so within twice that time every other process has tried.
        self._aside[alias] = time.monotonic() + 2 * self._every
        connections[alias].close()
        self._held_at.pop(alias, None)
        lease.leave(self._token, using=alias)
        raise _Stopped

    def _keep(self, alias: str) -> None:
        """Extend the lease when a third of it is over. Raises _Stopped if it is lost."""
        if time.monotonic() - self._held_at.get(alias, 0.0) > self._term / 3:
            self._hold(alias)

    def _hold(self, alias: str) -> None:
        """Take or extend the lease. Raises _Stopped if another process holds it."""
        if self.stopping.is_set() or not lease.hold(self._token, self._term, using=alias):
            self._held_at.pop(alias, None)
            raise _Stopped
        self._held_at[alias] = time.monotonic()
