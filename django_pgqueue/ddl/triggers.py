"""The trigger that makes an INSERT into a queue's own message table a send."""

from __future__ import annotations

__all__ = ["SEND_TRIGGER", "send_trigger"]

SEND_TRIGGER = "pgqueue_message_inserted"


def send_trigger(table: str) -> str:
    """Return the CREATE TRIGGER statement for one message table."""
    return (
        f"CREATE TRIGGER {SEND_TRIGGER} AFTER INSERT ON {table} "
        "REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT "
        "EXECUTE FUNCTION pgqueue_message_inserted()"
    )
