"""Which archived messages are still needed: by lakes, and by streams of the archive."""

from __future__ import annotations

from django_pgqueue.maintenance.work import Work

__all__ = ["exported_below", "foreign_lakes", "note_removal"]


def exported_below(work: Work) -> int | None:
    """Outcomes with a smaller ``archive_xid`` may be removed; None: all may.

    This is the position of the slowest lake that holds retention. The position of a lake from
    another server is a transaction of that server, so it counts as 0: nothing may be removed.
    """
    marks = [below if ours else 0 for _, below, ours in work.fetch("lakes", _name(work))]
    return min(marks, default=None)


def foreign_lakes(work: Work) -> list[str]:
    """The paths of lakes that hold the queue's retention and are from another server."""
    return [path for path, _, ours in work.fetch("lakes", _name(work)) if not ours]


def note_removal(work: Work, last_xid: int | None) -> None:
    """Raise the purge mark: outcomes up to this transaction may have been removed.

    Called in the transaction that removes them. A stream that has not read them stops at the mark.
    """
    if last_xid is not None:
        work.fetch("purge_mark", {"below_xid": last_xid + 1})


def _name(work: Work) -> dict[str, str]:
    return {"name": work.queue.name}
