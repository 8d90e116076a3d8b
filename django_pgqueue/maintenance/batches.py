"""The state of batches: their progress, callbacks that cannot be sent, and abandoned batches."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass

from django.db import connections
from django.utils.dateparse import parse_datetime

from django_pgqueue.engine.statements import compose, load

#: SQL for the state of a queue's batches, for :meth:`BatchHealth.of`. ``q.id`` is the queue.
STATE = load("batches/state", __package__)


@dataclass(frozen=True)
class BatchHealth:
    """The batches of one queue that are not done, and those abandoned in the last day."""

    open: int  # batches that are not done
    members: int  # their members
    ended: int  # those of their members that have ended
    failing: int  # batches whose callback cannot be sent
    newest_failing: int | None  # the id of the newest of them
    error: str | None  # why its callback cannot be sent
    then_queue: str | None  # the queue of its callback
    abandoned: int  # batches that nothing sealed in time
    newest_abandoned: int | None  # the id of the newest of them
    first_at: dt.datetime | None  # when the first of them was abandoned
    last_at: dt.datetime | None  # when the last of them was abandoned

    @classmethod
    def of(cls, state: str | None) -> BatchHealth | None:
        """Return a queue's state from the result of ``STATE``; None if it has no such batches."""
        if state is None:
            return None
        found = json.loads(state)
        for name in ("first_at", "last_at"):
            found[name] = found[name] and parse_datetime(found[name])
        return cls(**found)


def health(using: str) -> list[tuple[str, BatchHealth]]:
    """Return (queue name, state) of each queue with batches that are open or abandoned.

    >>> [(name, each.ended, each.members) for name, each in health("default")]
    [('mails', 1200, 5000)]
    """
    with connections[using].cursor() as cursor:
        cursor.execute(compose("batches/health", {"state": STATE}, __package__))
        found = [(name, BatchHealth.of(state)) for name, state in cursor.fetchall()]
    return [(name, each) for name, each in found if each is not None]
