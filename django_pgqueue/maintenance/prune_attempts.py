"""Deletes the stored failed attempts of removed messages, and the oldest ones beyond the limit."""

from __future__ import annotations

from typing import Any

from django_pgqueue import ddl
from django_pgqueue.conf import settings
from django_pgqueue.maintenance.work import Work

__all__ = ["prune_attempts"]

#: The most attempts that one statement reads or deletes.
BATCH = 1000


def prune_attempts(work: Work) -> None:
    """Delete the oldest attempts beyond ``ATTEMPTS_PER_QUEUE``, and those without a message.

    With a retention, only reads attempts from before ``work.before``: later messages still exist.
    """
    limit = {"kept": settings.ATTEMPTS_PER_QUEUE, "batch": BATCH}
    while work.fetch("limit_attempts", limit):
        pass
    queue = work.queue
    dead_message = ddl.own_table(ddl.MESSAGE, queue.dead_letter_queue_id or queue.pk)
    page: dict[str, Any] = {"before": work.before, "batch": BATCH, "at": "-infinity", "id": 0}
    while True:
        found = work.fetch("look_attempts", page, dead_message=dead_message)
        if gone := [pk for pk, _, there in found if not there]:
            work.fetch("prune_attempts", {"ids": gone})
        if len(found) < BATCH:
            return
        page["id"], page["at"], _ = found[-1]
