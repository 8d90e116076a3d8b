"""Deletes the slots of groups that have been idle since their rate last delayed them."""

from __future__ import annotations

from django_pgqueue.maintenance.work import Work

__all__ = ["sweep_slots"]

#: The most slots that one transaction deletes.
BATCH = 5000


def sweep_slots(work: Work) -> None:
    """Delete empty slots, in batches."""
    while True:
        [(swept,)] = work.fetch("sweep_slots", {"batch": BATCH})
        if swept < BATCH:
            return
        work.tell()
