"""The trigger that makes an INSERT into a queue's own message table a send."""

from __future__ import annotations

__all__ = ["SEND_TRIGGER", "send_trigger"]

SEND_TRIGGER = "pgqueue_message_inserted"


def send_trigger(table: str, *, unlogged: bool) -> str:
    """The CREATE TRIGGER statement for one message table."""
    twin = "_unlogged" if unlogged else ""
    return (
        f"CREATE TRIGGER {SEND_TRIGGER} AFTER INSERT ON {table} "
        f"REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT "
        f"EXECUTE FUNCTION pgqueue_message_inserted{twin}()"
    )
