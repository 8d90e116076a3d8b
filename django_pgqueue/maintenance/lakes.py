"""Lakes: what they hold back from retention, and how their exports are."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db import connections

from django_pgqueue.engine.statements import compose
from django_pgqueue.maintenance.work import Work

__all__ = [
    "LATE",
    "LakeHealth",
    "exported_below",
    "foreign_lakes",
    "health",
    "is_running",
    "note_removal",
]

#: Seconds after its last successful run when an export is late: one day plus two hours.
LATE = 26 * 3600.0


def exported_below(work: Work) -> int | None:
    """Outcomes with a smaller ``archive_xid`` may be removed; None: all may.

    This is the position of the slowest lake that holds retention. The position of a lake from
    another server is a transaction of that server, so it counts as 0: nothing may be removed.
    """
    return min((below if ours else 0 for _, below, ours in _holding(work)), default=None)


def foreign_lakes(work: Work) -> list[str]:
    """The paths of lakes that hold the queue's retention and are from another server."""
    return [path for path, _, ours in _holding(work) if not ours]


def note_removal(work: Work, last_xid: int | None) -> None:
    """Raise the purge mark: outcomes up to this transaction may have been removed.

    Called in the transaction that removes them. A stream that has not read them stops at the mark.
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
    exported_at: dt.datetime | None  # None: no run was published yet
    running: bool
    seconds: float  # since exported_at, or since the first try
    behind: int  # archived messages that it lacks
    held: int  # messages whose retention is over, kept for this lake
    failures: int  # failed runs since the last good one
    error: str  # of the last failed run: its first line

    def is_late(self, after: float = LATE) -> bool:
        """Whether messages have waited for longer than ``after`` seconds for an export."""
        return self.behind > 0 and self.seconds > after


def health(using: str, most: int) -> list[LakeHealth]:
    """The state of every lake's exports, by path. Counts of messages end at ``most``.

    >>> [lake.path for lake in health("default", 10_000) if lake.failures]
    ['s3://shop/lake']
    """
    with connections[using].cursor() as cursor:
        cursor.execute(compose("lakes/health", _parts("q.name"), __package__), {"most": most})
        return [LakeHealth(*row) for row in cursor.fetchall()]


def _parts(queue: str) -> dict[str, str]:
    """The parts of statements on lakes ``l``; ``queue`` is SQL for the queue's name."""
    takes = compose("lakes/takes", {"queue": queue}, __package__)
    return {"takes": takes, "running": is_running("l.path")}


def is_running(path: str) -> str:
    """SQL that is true while a session exports to a lake; ``path`` is SQL for the lake's path."""
    return compose("lakes/running", {"path": path}, __package__)
