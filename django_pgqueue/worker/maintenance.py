"""The maintenance loop: one consumer process of all has the duty to look after the queues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from uuid import uuid4

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Caretaker, Message, Queue
from django_pgqueue.models.operations.retention import is_lost
from django_pgqueue.worker.failures import Failures
from django_pgqueue.worker.loop import Loop

__all__ = ["Maintenance", "pause"]

#: For so long at most the duty is kept by a process that says nothing any more, in seconds.
_TERM = 30.0
#: A queue is looked after this often at least, in seconds.
_SELDOM = 3600.0


def pause(queue: Queue, least: float) -> float:
    """How many seconds there are between two rounds of one queue.

    A small part of the times that matter to it: what is kept for a month need not be looked
    through every minute.

    >>> import datetime as dt
    >>> pause(Queue(retention=dt.timedelta(hours=1), partition_interval=dt.timedelta(days=1)), 60)
    180.0
    """
    spans = [_SELDOM]
    if queue.retention is not None:
        spans.append(queue.retention.total_seconds() / 20)
    if queue.partition_interval is not None:
        spans.append(queue.partition_interval.total_seconds() / 4)
    return max(least, min(spans))


class _Stopped(Exception):
    """The process is about to end, or another one has the duty."""


class Maintenance(Loop):
    """Holds the duty, or waits for it, in each database.

    It has no watchdog: a large leaf may take its time. Should its connection fall silent, the
    duty goes to another process.
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
        #: Until when another process may try its luck, after this one had none.
        self._aside: dict[str, float] = {}

    def start(self) -> None:
        """Nothing is started when consumers are not to maintain."""
        if self._every > 0:
            super().start()

    def tick(self) -> float:
        if not self._began:
            # A consumer that lives for a moment only has something better to do.
            self._began = True
            return min(self._every, self._term / 3)
        failures = Failures()
        for alias in self._aliases:
            with failures.of(alias), contextlib.suppress(_Stopped):
                self._look_after(alias)
        failures.end()
        return min(self._every, self._term / 3)

    def leave(self) -> None:
        """Let another process have the duty at once."""
        for alias in list(self._held_at):
            Caretaker.objects.leave(self._token, using=alias)
        self._held_at.clear()

    def _look_after(self, alias: str) -> None:
        if time.monotonic() < self._aside.get(alias, 0.0):
            return
        self._hold(alias)
        for queue in Queue.objects.using(alias).order_by("name"):
            last = self._rounds.get((alias, queue.pk))
            if last is None or time.monotonic() - last >= pause(queue, self._every):
                self._keep(alias)
                self._maintain(queue)
                self._rounds[alias, queue.pk] = time.monotonic()

    def _maintain(self, queue: Queue) -> None:
        alias = queue.alias
        try:
            Message.objects.maintain(queue, progress=lambda _: self._keep(alias))
        except QueueNotFound:
            pass  # dropped meanwhile
        except _Stopped:
            raise
        except Exception as error:
            if isinstance(error, Error) and is_lost(alias):
                raise  # no matter of this queue
            signals.maintenance_failed.send_robust(queue.name, queue=queue, error=error)
            # It may be for want of rights, or of newer code: another process shall try.
            self._rounds[alias, queue.pk] = time.monotonic()
            self._aside[alias] = time.monotonic() + self._every
            if isinstance(error, Error):
                connections[alias].close()
            self._held_at.pop(alias, None)
            Caretaker.objects.leave(self._token, using=alias)
            raise _Stopped from error

    def _keep(self, alias: str) -> None:
        """Renew the duty in the midst of a long round, and see whether to go on."""
        if time.monotonic() - self._held_at.get(alias, 0.0) > self._term / 3:
            self._hold(alias)

    def _hold(self, alias: str) -> None:
        if self.stopping.is_set() or not Caretaker.objects.hold(
            self._token, self._term, using=alias
        ):
            self._held_at.pop(alias, None)
            raise _Stopped
        self._held_at[alias] = time.monotonic()
