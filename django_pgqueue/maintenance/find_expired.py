"""Finds the time before which archived messages may be removed."""

from __future__ import annotations

import datetime as dt

from django.utils.timezone import is_naive, make_aware

from django_pgqueue import signals
from django_pgqueue.maintenance import lakes
from django_pgqueue.maintenance.work import Work

__all__ = ["find_expired"]


def find_expired(work: Work) -> None:
    """Set ``before``, ``refused`` and ``foreign_lakes`` by the retention and the lakes.

    Receivers of ``retention_due`` may return an earlier time. False or an exception refuses.
    """
    queue = work.queue
    if queue.retention is None:
        return
    work.foreign_lakes = tuple(lakes.foreign_lakes(work))
    try:
        before = work.now() - queue.retention
    except OverflowError:
        return
    for _, answer in signals.retention_due.send_robust(queue.name, queue=queue, before=before):
        if answer is False or isinstance(answer, Exception):
            work.refused = True
            return
        if isinstance(answer, dt.datetime):
            before = min(before, make_aware(answer) if is_naive(answer) else answer)
    work.before = before
