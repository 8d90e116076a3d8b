"""The readable columns of archived, live and consumed messages.

In their SQL, ``a`` is the archive, the live view or a list of deliveries, ``m`` the message, and
``{queue}`` the queue's name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django_pgqueue.engine.columns import FROM_SENDER
from pyspark_pgqueue.errors import InvalidOption


@dataclass(frozen=True)
class Column:
    """A column: its type in Spark, and the SQL expression for it."""

    type: str
    sql: str


#: By the type of a message's column: its type in Spark, and the type that SQL converts it to.
_TYPES = {
    "jsonb": ("string", "::text"),
    "smallint": ("int", "::integer"),
    "text": ("string", ""),
    "timestamptz": ("timestamp", ""),
}

_MESSAGE = {
    name: Column(_TYPES[kind][0], f"m.{name}{_TYPES[kind][1]}") for name, kind, *_ in FROM_SENDER
}

_BOTH = {
    "id": Column("bigint", "a.id"),
    "queue": Column("string", "{queue}"),
    "state": Column("string", "a.state"),
    **_MESSAGE,
    "enqueued_at": Column("timestamp", "a.enqueued_at"),
    "first_read_at": Column("timestamp", "a.first_read_at"),
    "last_read_at": Column("timestamp", "a.last_read_at"),
    "read_ct": Column("int", "a.read_ct"),
    "attempts": Column("int", "a.attempts"),
}

ARCHIVE = {
    **_BOTH,
    "archived_at": Column("timestamp", "a.archived_at"),
    "error": Column("string", "a.error"),
    "result": Column("string", "a.result::text"),
    "archive_xid": Column("bigint", "a.archive_xid"),
}

LIVE = {
    **_BOTH,
    "priority": Column("int", "a.priority::integer"),
    "group_key": Column("string", "a.group_key"),
    "vt": Column("timestamp", "a.vt"),
    "process_id": Column("int", "a.process_id"),
}

#: Columns of messages that a stream consumes.
CONSUMED = {
    "id": Column("bigint", "m.id"),
    "queue": Column("string", "{queue}"),
    **_MESSAGE,
    "enqueued_at": Column("timestamp", "m.enqueued_at"),
    "read_ct": Column("int", "a.read_ct"),
}

#: Columns of source=counts: one row per queue and state, with messages counted by PostgreSQL.
COUNTS = {
    "queue": Column("string", "{queue}"),
    "state": Column("string", "a.state"),
    "messages": Column("bigint", "count(*)"),
    "oldest": Column("timestamp", "min(a.enqueued_at)"),
    "newest": Column("timestamp", "max(a.enqueued_at)"),
}

#: The message's columns that rows to send may have as they are. Of times they have the lengths.
GIVEN = {each.name: each.type for each in FROM_SENDER if each.type != "timestamptz"}

#: Columns of rows to send, mapped to the message's columns.
SENT = {
    **{name: name for name in GIVEN},
    "queue": "queue_id",
    "group": "group_key",
    "delay": "delay",
    "expires": "expires",
}

#: The column with the text of a body that does not fit its type, as in Spark's own JSON reader.
CORRUPT = "_corrupt_record"

#: Columns of JSON. They are read as text, or as the type that a schema declares.
JSON = {"body", "headers", "result"}


def ddl(columns: dict[str, Column], names: Iterable[str]) -> str:
    """Return the schema of the named columns as Spark DDL.

    >>> ddl(ARCHIVE, ["id", "queue"])
    'id bigint, queue string'
    """
    return ", ".join(f"{name} {found(columns, name).type}" for name in names)


def found(columns: dict[str, Column], name: str) -> Column:
    if name not in columns:
        raise InvalidOption(f"There is no column {name!r}. The columns are {', '.join(columns)}.")
    return columns[name]


def stored(names: Iterable[str]) -> list[str]:
    """Return the columns that the database stores: all but ``_corrupt_record``."""
    return [name for name in names if name != CORRUPT]


def needs_message(columns: dict[str, Column], names: Iterable[str]) -> bool:
    """Whether the columns need the message tables. The archive alone is much narrower."""
    return any(found(columns, name).sql.startswith("m.") for name in names)


def select(columns: dict[str, Column], names: Iterable[str], queue: str) -> str:
    """Return the SELECT list of some columns; ``queue`` is the SQL for the queue's name."""
    return ", ".join(
        f"{found(columns, name).sql.replace('{queue}', queue)} AS {name}" for name in names
    )


def of_lake(names: Iterable[str] = ARCHIVE) -> str:
    """Return the schema of some columns of a lake. ``queue`` and ``date`` are in the files' paths.

    >>> of_lake(["id"])
    'id bigint, queue string, date string'
    """
    return f"{ddl(ARCHIVE, [name for name in names if name != 'queue'])}, queue string, date string"


def literal(value: Any) -> str | None:
    """A value as an SQL literal; None for values that cannot be written safely.

    >>> literal("it's"), literal(7), literal(None)
    ("'it''s'", '7', None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return str(value)
    # No text with {queue}: in a condition, it would be replaced by the queue's name.
    if isinstance(value, str) and not any(part in value for part in ("\\", "\x00", "{queue}")):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.astimezone()
        return f"'{aware.isoformat()}'::timestamptz"
    return None
