"""Readers of the archive that retention waits for: lakes, and streams that lag."""

from __future__ import annotations

from django_pgqueue.maintenance.work import Work

__all__ = ["exported_below", "foreign_lakes", "note_removal"]


def exported_below(work: Work) -> int | None:
    """Outcomes with a smaller ``archive_xid`` may be removed; None: all of them.

    That is the mark of the slowest lake that holds the queue back. A lake's mark is a transaction
    of the server that it was exported from and says nothing about another server's: one from
    elsewhere holds everything back, with 0.
    """
    marks = [below if ours else 0 for _, below, ours in work.fetch("lakes", _name(work))]
    return min(marks, default=None)


def foreign_lakes(work: Work) -> list[str]:
    """The paths of lakes that hold the queue back and were exported from another server."""
    return [path for path, _, ours in work.fetch("lakes", _name(work)) if not ours]


def note_removal(work: Work, last_xid: int | None) -> None:
    """Note that outcomes up to that transaction may be gone; a mark never falls.

    In the transaction that removes them, so that a stream that has not read them stops.
    """
    if last_xid is not None:
        work.fetch("purge_mark", {"below_xid": last_xid + 1})


def _name(work: Work) -> dict[str, str]:
    return {"name": work.queue.name}
