"""Deletes unique keys that no message holds any more."""

from __future__ import annotations

from django_pgqueue.maintenance.work import Work

__all__ = ["sweep_keys"]

#: The most keys that one transaction checks.
BATCH = 5000


def sweep_keys(work: Work) -> None:
    """Delete the unique keys that no message holds, in batches."""
    while True:
        [(seen, deleted)] = work.fetch("sweep_keys", {"batch": BATCH})
        work.counts["keys"] += deleted
        if seen < BATCH:
            return
        work.tell()
