"""The names of the tables of a queue. Only its integer id ever reaches an identifier."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ARCHIVE",
    "MESSAGE",
    "PARENTS",
    "hot_tables",
    "own_table",
    "own_tables",
    "shared_names",
    "table_names",
    "wake_sequence",
]

#: The tables of messages and of outcomes, which have a partition for each queue.
PARENTS = MESSAGE, ARCHIVE = "pgqueue_message", "pgqueue_archive"

# The tables of messages in the queue, of all logged or all unlogged queues.
_HOT = ("ready", "deferred", "lease", "waiting", "group", "recheck", "dedup")


def own_table(parent: str, queue_id: int) -> str:
    """The partition of a parent that one queue has; it may be partitioned by time itself.

    >>> own_table("pgqueue_archive", 7)
    'pgqueue_archive_q7'
    """
    return f"{parent}_q{int(queue_id)}"


def own_tables(queue_id: int) -> tuple[str, str]:
    """The queue's table of messages, and its table of outcomes."""
    return own_table(MESSAGE, queue_id), own_table(ARCHIVE, queue_id)


def wake_sequence(queue_id: int) -> str:
    """The sequence by which the queue's sends know whether to notify."""
    return f"pgqueue_wake_q{int(queue_id)}"


def shared_names(*, unlogged: bool) -> dict[str, Any]:
    """The names of the objects that all logged, or all unlogged, queues share."""
    twin = "_unlogged" if unlogged else ""
    return {
        "ready": f"pgqueue_ready{twin}",
        "deferred": f"pgqueue_deferred{twin}",
        "lease": f"pgqueue_lease{twin}",
        "waiting": f"pgqueue_waiting{twin}",
        "group": f"pgqueue_group{twin}",
        "recheck": f"pgqueue_recheck{twin}",
        "dedup": f"pgqueue_dedup{twin}",
        "next_heads": f"pgqueue_next_heads{twin}",
        "claim_keys": f"pgqueue_claim_keys{twin}",
        "unlogged": str(unlogged).lower(),
    }


def hot_tables() -> list[str]:
    """The narrow tables that all queues share, logged and unlogged."""
    return [shared_names(unlogged=twin)[part] for twin in (False, True) for part in _HOT]


def table_names(queue_id: int, *, unlogged: bool = False) -> dict[str, Any]:
    """The names of one queue's tables in the text of its queries.

    >>> table_names(7)["message"], table_names(7, unlogged=True)["ready"]
    ('pgqueue_message_q7', 'pgqueue_ready_unlogged')
    """
    number = int(queue_id)
    message, archive = own_tables(number)
    return {
        **shared_names(unlogged=unlogged),
        "queue_id": number,
        "message": message,
        "archive": archive,
        "wake": wake_sequence(number),
    }
