"""The triggers on a queue's own message tables."""

from __future__ import annotations

__all__ = [
    *("KEEP_TRIGGER", "LEAVE_TRIGGER", "SEND_TRIGGER"),
    *("keep_trigger", "leave_trigger", "send_trigger"),
]

#: Makes an INSERT a send.
SEND_TRIGGER = "pgqueue_message_inserted"
#: On the tables of a subscription, in place of that of a send.
KEEP_TRIGGER = "pgqueue_message_kept"
#: On the tables of a source: messages that leave it become its subscriptions' own.
LEAVE_TRIGGER = "pgqueue_message_left"


def send_trigger(table: str) -> str:
    """Return the CREATE TRIGGER statement for one message table."""
    return _inserted(SEND_TRIGGER, table)


def keep_trigger(table: str) -> str:
    """Return the CREATE TRIGGER statement for one message table of a subscription."""
    return _inserted(KEEP_TRIGGER, table)


def leave_trigger(table: str) -> str:
    """Return the CREATE TRIGGER statement for one message table of a source."""
    return (
        f"CREATE TRIGGER {LEAVE_TRIGGER} AFTER DELETE ON {table} "
        f"REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {LEAVE_TRIGGER}()"
    )


def _inserted(name: str, table: str) -> str:
    return (
        f"CREATE TRIGGER {name} AFTER INSERT ON {table} "
        f"REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
    )
