"""Lakes: which archived messages retention keeps for them, and the state of their exports."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db import connections

from django_pgqueue.engine.statements import compose
from django_pgqueue.maintenance.work import Work

#: A lake is late this many seconds after its last successful export: one day and two hours.
LATE = 26 * 3600.0
#: Share of bodies that do not fit their columns which is a problem.
MISFITS = 0.01


def exported_below(work: Work) -> int | None:
    """Return the ``archive_xid`` below which outcomes may be removed, or None if all may.

    This is the lowest position of the lakes that hold retention. A lake from another server has a
    transaction of that server as its position. It counts as 0: nothing may be removed.
    """
    return min((below if ours else 0 for _, below, ours in _holding(work)), default=None)


def foreign_lakes(work: Work) -> list[str]:
    """Return the paths of lakes from other servers that hold the queue's retention."""
    return [path for path, _, ours in _holding(work) if not ours]


def note_removal(work: Work, last_xid: int | None) -> None:
    """Raise the purge mark: outcomes up to transaction ``last_xid`` may have been removed.

    Called in the transaction that removes the outcomes. A stream that has not read the
    outcomes stops at the mark.
    """
    if last_xid is not None:
        work.fetch("purge_mark", {"below_xid": last_xid + 1})


def _holding(work: Work) -> list[tuple[Any, ...]]:
    parts = _parts("%(name)s")
    return work.fetch("lakes/holding", {"name": work.queue.name}, None, **parts)


@dataclass(frozen=True)
class LakeHealth:
    """The state of a lake's exports."""

    path: str
    queues: list[str]  # empty: every queue
    holds_retention: bool
    exported_at: dt.datetime | None  # None before the first run is published
    running: bool
    seconds: float  # seconds since exported_at, or since the first try
    behind: int  # archived messages that the lake lacks
    held: int  # messages past the retention that are kept for this lake
    failures: int  # failed runs since the last successful one
    error: str  # the line that names the last failed run's error
    misfits: float  # share of the last run's bodies that do not fit their columns

    def is_late(self, after: float = LATE) -> bool:
        """Whether the lake lacks messages, and its last export is over ``after`` seconds ago."""
        return self.behind > 0 and self.seconds > after


def health(using: str, most: int) -> list[LakeHealth]:
    """Return the state of every lake's exports, sorted by path. Counts messages up to ``most``.

    >>> [lake.path for lake in health("default", 10_000) if lake.failures]
    ['s3://shop/lake']
    """
    with connections[using].cursor() as cursor:
        cursor.execute(compose("lakes/health", _parts("q.name"), __package__), {"most": most})
        return [LakeHealth(*row) for row in cursor.fetchall()]


def _parts(queue: str) -> dict[str, str]:
    """Return SQL fragments for statements on lakes (``l``). ``queue`` is SQL for a queue's name."""
    takes = compose("lakes/takes", {"queue": queue}, __package__)
    return {"takes": takes, "running": is_running("l.path")}


def is_running(path: str) -> str:
    """Return SQL that is true while a session exports to a lake. ``path`` is SQL for its path."""
    return compose("lakes/running", {"path": path}, __package__)
