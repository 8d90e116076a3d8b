"""The names of a queue's tables. An identifier contains the queue's integer id, never its name."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ARCHIVE",
    "LIVE",
    "MESSAGE",
    "PARENTS",
    "own_table",
    "own_tables",
    "table_names",
    "wake_sequence",
]

#: The partitioned tables of messages and outcomes, with a partition per queue.
PARENTS = MESSAGE, ARCHIVE = "pgqueue_message", "pgqueue_archive"

#: The live tables, which all queues share.
LIVE = (
    "pgqueue_ready",
    "pgqueue_deferred",
    "pgqueue_lease",
    "pgqueue_waiting",
    "pgqueue_group",
    "pgqueue_recheck",
    "pgqueue_claim",
)


def own_table(parent: str, queue_id: int) -> str:
    """Return the name of a queue's partition of a parent table. It may be partitioned by time.

    >>> own_table("pgqueue_archive", 7)
    'pgqueue_archive_q7'
    """
    return f"{parent}_q{int(queue_id)}"


def own_tables(queue_id: int) -> tuple[str, str]:
    """Return the names of a queue's message table and archive table."""
    return own_table(MESSAGE, queue_id), own_table(ARCHIVE, queue_id)


def wake_sequence(queue_id: int) -> str:
    """Return the name of the sequence that says whether a consumer of the queue sleeps."""
    return f"pgqueue_wake_q{int(queue_id)}"


def table_names(queue_id: int) -> dict[str, Any]:
    """Return the placeholders of one queue's tables and sequence, for the text of a statement.

    >>> table_names(7)["message"]
    'pgqueue_message_q7'
    """
    number = int(queue_id)
    message, archive = own_tables(number)
    return {
        "queue_id": number,
        "message": message,
        "archive": archive,
        "wake": wake_sequence(number),
    }
