"""Restores the sequence that limits a queue's notifications, if it is missing."""

from __future__ import annotations

from django_pgqueue.maintenance.work import Work

__all__ = ["repair_wake"]

REPAIR = (
    "SELECT pgqueue_repair_wake(%s) "
    "WHERE has_function_privilege('pgqueue_repair_wake(integer)', 'EXECUTE')"
)


def repair_wake(work: Work) -> None:
    """Make the sequence if it is missing. Without the sequence every send notifies."""
    work.value(REPAIR, [work.queue.pk])
