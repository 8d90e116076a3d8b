"""The maintenance loop: one consumer process in each database maintains its queues, and goes on
with the bulk actions that were begun in the admin."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from uuid import uuid4

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.maintenance import keep_history, lease, maintain_or_tell
from django_pgqueue.models import BulkAction, Queue
from django_pgqueue.worker.failures import Failures
from django_pgqueue.worker.loop import Loop

__all__ = ["Maintenance", "pause"]

#: Maximum length of the maintenance lease, in seconds.
_TERM = 30.0
#: Maximum seconds between two rounds of a queue.
_LONGEST_PAUSE = 3600.0
#: Seconds until the history is tried again after an error.
_LOOK = 60.0


def pause(queue: Queue, least: float) -> float:
    """The seconds between two rounds of one queue.

    A small part of its retention and of its interval: a queue that keeps messages for a month need
    not be looked through every minute.

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
    """The process is about to end, or another one holds the lease.

    It is no Exception, so that it is not taken for a failure of the queue.
    """


class Maintenance(Loop):
    """Holds the lease of maintenance, or waits for it, in each database.

    Its time has no limit: a large partition takes long to read. Should its connection fall silent,
    the lease runs out and another process takes over.
    """

    def __init__(self, aliases: Iterable[str]) -> None:
        super().__init__("maintenance")
        self._aliases = sorted(aliases)
        self._every = float(settings.MAINTENANCE_SECONDS or 0)
        self._term = min(_TERM, max(1.0, self._every * 3))
        self._token = uuid4()
        self._began = False
        self._held_at: dict[str, float] = {}
        self._rounds: dict[tuple[str, int], float] = {}
        self._looks: dict[str, float] = {}
        #: By database: until when this process leaves the lease to others, after a round failed.
        self._aside: dict[str, float] = {}

    def start(self) -> None:
        """Nothing is started when consumers are not to maintain."""
        if self._every > 0:
            super().start()

    def tick(self) -> float:
        if not self._began:
            # The first round is delayed, so that a short-lived consumer runs none.
            self._began = True
            return min(self._every, self._term / 3)
        failures = Failures()
        waits = [self._every, self._term / 3]
        for alias in self._aliases:
            with failures.of(alias), contextlib.suppress(_Stopped):
                self._maintain_database(alias)
                if self._held_at.get(alias) is not None:
                    wait = BulkAction.objects.drive(using=alias)
                    waits += [] if wait is None else [wait]
        failures.end()
        return min(waits)

    def leave(self) -> None:
        """Let another process have the lease at once."""
        for alias in list(self._held_at):
            lease.leave(self._token, using=alias)
        self._held_at.clear()

    def _maintain_database(self, alias: str) -> None:
        if time.monotonic() < self._aside.get(alias, 0.0):
            return
        self._hold(alias)
        for queue in Queue.objects.using(alias).order_by("name"):
            last = self._rounds.get((alias, queue.pk))
            if last is None or time.monotonic() - last >= pause(queue, self._every):
                self._keep(alias)
                self._maintain(queue)
        self._keep(alias)
        self._keep_history(alias)

    def _keep_history(self, alias: str) -> None:
        if time.monotonic() < self._looks.get(alias, 0.0):
            return
        wait = min(self._every, _LOOK)
        try:
            wait = min(self._every, keep_history(alias))
        except Error as error:
            signals.database_failed.send_robust(
                self.name, operation="history", error=error, wait=wait
            )
            connections[alias].close()
        self._looks[alias] = time.monotonic() + wait

    def _maintain(self, queue: Queue) -> None:
        alias = queue.alias
        maintained = maintain_or_tell(
            queue, caught=Exception, progress=lambda removed: self._keep(alias)
        )
        self._rounds[alias, queue.pk] = time.monotonic()
        if maintained is None or not maintained.error:
            return
        # Rights may be missing, or newer code: another process is given a try. Each looks for
        # the lease once in `_every`, so twice that lets the slowest of them have it.
        self._aside[alias] = time.monotonic() + 2 * self._every
        connections[alias].close()
        self._held_at.pop(alias, None)
        lease.leave(self._token, using=alias)
        raise _Stopped

    def _keep(self, alias: str) -> None:
        """Renew the lease in the midst of a long round. Raises _Stopped to end the round."""
        if time.monotonic() - self._held_at.get(alias, 0.0) > self._term / 3:
            self._hold(alias)

    def _hold(self, alias: str) -> None:
        if self.stopping.is_set() or not lease.hold(self._token, self._term, using=alias):
            self._held_at.pop(alias, None)
            raise _Stopped
        self._held_at[alias] = time.monotonic()
