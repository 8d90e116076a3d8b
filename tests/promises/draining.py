"""Empties a queue after a run, to show that no message is stuck."""

from __future__ import annotations

from django_pgqueue.models import BoundQueue
from tests.conftest import run_sql
from tests.waiting import until

__all__ = ["drain", "is_empty"]


def is_empty() -> bool:
    return run_sql("SELECT count(*) FROM pgqueue_live") == [(0,)]


def drain(orders: BoundQueue) -> list[int]:
    """Read and archive until no message is left; returns the archived ids."""
    archived: list[int] = []

    def try_to() -> bool:
        archived.extend(orders.archive(orders.read_grouped(qty=1000)))
        archived.extend(orders.archive(orders.read(qty=1000)))
        return is_empty()

    until(try_to, 60)
    return archived
