"""Writes a consumer process's counts of each minute. They are kept in memory between writes."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterable
from typing import Any, Protocol

from django.db import Error, connections, transaction

from django_pgqueue import signals
from django_pgqueue.conf import settings
from django_pgqueue.database.locks import milliseconds
from django_pgqueue.history.counters import COUNTERS, statement

#: Timeouts of the write in seconds: for each lock, and for the whole statement.
LOCK, LONGEST = 0.2, 1.0


class Counted(Protocol):
    """A consumer's subscription."""

    @property
    def queue(self) -> Any: ...

    def tally(self) -> dict[Any, float]:
        """Return all counts so far. Keys of wait and run times are pairs (kind, bucket)."""


class Recorder:
    """Writes the history of a process's subscriptions in one database.

    Errors must not disturb the consumer: a lasting error is signalled once, and the next successful
    write includes the missing counts.
    """

    def __init__(self, alias: str, subscriptions: Iterable[Counted]) -> None:
        self._alias = alias
        self._subscriptions = list(subscriptions)
        self._every = settings.HISTORY_SECONDS
        self._due = 0.0
        self._failing = False
        #: The minute and the process whose row was written last.
        self._row_of: tuple[dt.datetime, int] | None = None
        #: The counts at the last write before the current minute, and at the last write.
        self._base: dict[Counted, dict[Any, float]] = {}
        self._written: dict[Counted, dict[Any, float]] = {}

    def write(self, process_id: int, *, now: bool = False) -> None:
        """Write the current minute's counts, if a write is due. Never raises a database error.

        Takes at most one second, since heartbeats wait for it.
        """
        if self._every is None or (time.monotonic() < self._due and not now):
            return
        self._due = time.monotonic() + self._every
        counted = {each: each.tally() for each in self._subscriptions}
        try:
            with transaction.atomic(using=self._alias), connections[self._alias].cursor() as cursor:
                self._write(cursor, process_id, counted)
        except Error as error:
            if not self._failing:
                signals.database_failed.send_robust(
                    "history", operation="history", error=error, wait=self._every
                )
            self._failing = True
        else:
            self._failing = False
            self._written = counted

    def _write(
        self, cursor: Any, process_id: int, counted: dict[Counted, dict[Any, float]]
    ) -> None:
        """Write the rows of the current minute of the server's clock: the counts since it began."""
        cursor.execute(
            "SELECT date_trunc('minute', statement_timestamp(), 'UTC'), "
            "set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
            [milliseconds(LOCK), milliseconds(LONGEST)],
        )
        minute, *_ = cursor.fetchone()
        if (minute, process_id) != self._row_of:
            self._row_of, self._base = (minute, process_id), self._written
        rows = [
            _row(subscription, counts, self._base.get(subscription, {}))
            for subscription, counts in counted.items()
            if counts != self._written.get(subscription)
        ]
        if rows:
            params = {"minute": minute, "process_id": process_id, "rows": json.dumps(rows)}
            cursor.execute(statement("note"), params)


def _row(subscription: Counted, counts: dict[Any, float], base: dict[Any, float]) -> dict[str, Any]:
    """Return the columns of one queue's row: its counts since ``base``."""
    more = {key: new for key, number in counts.items() if (new := number - base.get(key, 0))}
    failed = more.get("failed", 0) + more.get("exhausted", 0)
    has_other = subscription.queue.dead_letter_queue_id is not None
    return {
        "queue_id": subscription.queue.pk,
        **{name: more.get(name, 0) for name in COUNTERS},
        "failed": 0 if has_other else failed,
        "dead_lettered": failed if has_other else 0,
        **{
            name: {key[1]: number for key, number in more.items() if key[0] == name}
            for name in ("waits", "runs")
        },
    }
