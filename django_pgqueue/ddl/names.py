"""The names of a queue's tables. An identifier contains the queue's integer id, never its name."""

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

#: The partitioned tables of messages and outcomes, with a partition per queue.
PARENTS = MESSAGE, ARCHIVE = "pgqueue_message", "pgqueue_archive"

# The live tables, shared by all logged or by all unlogged queues.
_HOT = ("ready", "deferred", "lease", "waiting", "group", "recheck", "dedup")


def own_table(parent: str, queue_id: int) -> str:
    """A queue's partition of a parent table. It may itself be partitioned by time.

    >>> own_table("pgqueue_archive", 7)
    'pgqueue_archive_q7'
    """
    return f"{parent}_q{int(queue_id)}"


def own_tables(queue_id: int) -> tuple[str, str]:
    """A queue's message table and its archive table."""
    return own_table(MESSAGE, queue_id), own_table(ARCHIVE, queue_id)


def wake_sequence(queue_id: int) -> str:
    """The sequence that tells a queue's sends whether to notify."""
    return f"pgqueue_wake_q{int(queue_id)}"


def shared_names(*, unlogged: bool) -> dict[str, Any]:
    """The objects shared by all logged, or by all unlogged, queues."""
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
    """The live tables that all queues share, logged and unlogged."""
    return [shared_names(unlogged=twin)[part] for twin in (False, True) for part in _HOT]


def table_names(queue_id: int, *, unlogged: bool = False) -> dict[str, Any]:
    """The table names that a queue's SQL statements refer to.

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
