"""The work of this process on each queue, minute by minute; counted in memory, written at times."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import Error

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.engine.history.writing import record
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Recorder"]


class Recorder:
    """Writes the history of one database's subscriptions, as one of its processes.

    History must not disturb the consumer: an error is told once, and the next write makes up for
    it.
    """

    def __init__(self, alias: str, subscriptions: Iterable[Subscription]) -> None:
        self._alias = alias
        self._subscriptions = list(subscriptions)
        self._every = settings.HISTORY_SECONDS
        self._due = 0.0
        self._failing = False
        self._process_id = 0
        self._minute: dt.datetime | None = None
        #: The counts when the minute began, and at the last write.
        self._base: dict[Subscription, dict[Any, float]] = {}
        self._written: dict[Subscription, dict[Any, float]] = {}

    def write(self, process_id: int, *, now: bool = False) -> None:
        """Write what was counted since the last time, if it is time. Never raises a database
        error."""
        if self._every is None or (time.monotonic() < self._due and not now):
            return
        self._due = time.monotonic() + self._every
        counted = {each: each.tally() for each in self._subscriptions}
        base = self._base

        def rows(minute: dt.datetime) -> Iterator[dict[str, Any]]:
            nonlocal base
            if (minute, process_id) != (self._minute, self._process_id):
                base = self._written
            self._minute, self._process_id = minute, process_id
            for subscription, counts in counted.items():
                if counts != self._written.get(subscription):
                    yield _row(subscription, counts, base.get(subscription, {}))

        try:
            record(self._alias, process_id, rows)
        except Error as error:
            if not self._failing:
                signals.database_failed.send_robust(
                    "history", operation="history", error=error, wait=self._every
                )
            self._failing = True
            return
        finally:
            self._base = base
        self._failing = False
        self._written = counted


def _row(
    subscription: Subscription, counts: dict[Any, float], base: dict[Any, float]
) -> dict[str, Any]:
    """The columns of one queue: what was counted since ``base``."""
    more = {key: new for key, number in counts.items() if (new := number - base.get(key, 0))}
    failed = more.get("failed", 0) + more.get("exhausted", 0)
    has_other = subscription.queue.dead_letter_queue_id is not None
    return {
        "queue_id": subscription.queue.pk,
        "completed": more.get("completed", 0),
        "retried": more.get("retried", 0),
        "failed": 0 if has_other else failed,
        "dead_lettered": failed if has_other else 0,
        "lost": more.get("lost", 0),
        "busy": more.get("busy", 0.0),
        **{
            name: {key[1]: number for key, number in more.items() if key[0] == name}
            for name in ("waits", "runs")
        },
    }
