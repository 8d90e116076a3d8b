"""The errors of failed attempts: kept with the outcome, and removed with their messages."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

from django_pgqueue import ddl
from django_pgqueue.acks import Failure
from django_pgqueue.conf import settings
from django_pgqueue.engine.session import OpenQueue

__all__ = ["masked", "note", "prune"]

_MASK = "********"
#: Rows of one statement that prunes.
_BATCH = 1000


def masked(text: str) -> str:
    """The text without what ``PGQUEUE["MASK"]`` matches: secrets do not belong in an archive."""
    for pattern in settings.MASK:
        text = re.sub(pattern, _MASK, text)
    return text


def note(queue: OpenQueue, failures: Sequence[tuple[int, Failure]], process_id: int | None) -> None:
    """Keep why these messages, by their ids, failed; of each the last attempts only."""
    if not failures or settings.ATTEMPTS_KEPT < 1:
        return
    length = settings.TRACEBACK_LENGTH
    ids = [message_id for message_id, _ in failures]
    found = [failure for _, failure in failures]
    queue.run(
        "settle/note_attempts",
        {
            "ids": ids,
            "attempts": [failure.attempt for failure in found],
            "error_classes": [failure.error_class for failure in found],
            "messages": [masked(failure.message)[:length] for failure in found],
            # The end tells most: there is the exception, and the place where it was raised.
            "tracebacks": [masked(failure.traceback)[-length:] for failure in found],
            "process_id": process_id,
        },
    )
    queue.run("settle/trim_attempts", {"ids": ids, "kept": settings.ATTEMPTS_KEPT})


def prune(queue: OpenQueue, before: dt.datetime | None = None) -> int:
    """Remove attempts of messages that are gone; returns how many went.

    ``before`` leaves out what is newer: its messages are still there.
    """
    removed = 0
    after: dict[str, Any] = {"at": "-infinity", "id": 0}
    looked = _BATCH
    dead_message = ddl.own_table(ddl.MESSAGE, queue.dead_letter_queue_id or queue.id)
    while looked == _BATCH:
        params = {"before": before, "batch": _BATCH, **after}
        found = queue.run("settle/look_attempts", params, dead_message=dead_message)
        if missing := [pk for pk, _, there in found if not there]:
            removed += len(queue.run("settle/prune_attempts", {"ids": missing}))
        if (looked := len(found)) == _BATCH:
            last, at, _ = found[-1]
            after = {"at": at, "id": last}
    return removed
