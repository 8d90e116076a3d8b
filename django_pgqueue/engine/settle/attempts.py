"""Store the errors of failed attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django_pgqueue.acks import Failure
from django_pgqueue.engine.open_queue import OpenQueue

__all__ = ["masked", "note"]

_MASK = "********"


def masked(queue: OpenQueue, text: str) -> str:
    """Mask all matches of the patterns in the setting MASK, so that no secret is stored."""
    for pattern in queue.runner.settings.MASK:
        text = re.sub(pattern, _MASK, text)
    return text


def note(queue: OpenQueue, failures: Sequence[tuple[int, Failure]], process_id: int | None) -> None:
    """Store failures, given by message id. Keeps only the latest attempts of each message."""
    settings = queue.runner.settings
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
            "messages": [masked(queue, failure.message)[:length] for failure in found],
            # Only the end is kept: it has the exception and the line that raised it.
            "tracebacks": [masked(queue, failure.traceback)[-length:] for failure in found],
            "process_id": process_id,
        },
    )
    queue.run("settle/trim_attempts", {"ids": ids, "kept": settings.ATTEMPTS_KEPT})
