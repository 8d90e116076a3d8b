"""The columns of a message, each listed once. Statements take their lists from here.

=====================  ==========================================================================
placeholder            text
=====================  ==========================================================================
``{common_columns}``   the columns with one value for all messages of a send, such as ``priority``
``{common_values}``    their values, such as ``%(priority)s::smallint``
``{kept_columns}``     the columns that stay as they are when a message is moved, dead-lettered or
                       sent again
``{copied_columns}``   the columns that a subscription copies from its source's messages
``{read_columns}``     what a read returns of message ``m``, with a comma before each column
``{read_names}``       a name for each of these, with a comma before it
``{no_columns}``       NULL for each of these columns, for a row that is not a message
=====================  ==========================================================================
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["COLUMNS", "COMMON", "FROM_SENDER", "KEPT", "PLACEHOLDERS", "Column", "read_columns"]


class Column(NamedTuple):
    """A column of ``pgqueue_message``, and what statements do with it."""

    name: str
    #: The type of its values. The table has a domain over some types (ddl/messages.sql).
    type: str
    #: ``server``: a default sets it, and no role that only sends may. ``sender``: arguments of a
    #: send set it, and exports have it. ``statement``: the statement sets it.
    set_by: Literal["sender", "statement", "server"]
    #: Whether all messages of a send have the same value: the argument with the column's name.
    common: bool = False
    #: Whether move, dead_letter and replay copy it as it is.
    kept: bool = False
    #: What a read returns, as SQL on message ``m``. None: not in ``{read_columns}``.
    read: str | None = None


#: Those with ``read`` are in the order of :class:`~django_pgqueue.engine.rows.Delivery`'s fields.
COLUMNS = (
    Column("body", "jsonb", "sender", kept=True, read="m.body"),
    Column("headers", "jsonb", "sender", read="m.headers"),
    Column("priority", "smallint", "sender", common=True, kept=True),
    Column("group_key", "text", "sender", kept=True),
    Column("unique_key", "text", "sender"),
    Column("scheduled_at", "timestamptz", "sender", read="m.scheduled_at"),
    Column(
        "expires_at",
        "timestamptz",
        "sender",
        read="(extract(epoch FROM m.expires_at) * 1000000::numeric)::bigint",
    ),
    Column("id", "bigint", "statement"),
    Column("queue_id", "integer", "statement"),
    Column("source_id", "integer", "statement"),
    Column("failure", "bigint", "statement"),
    Column("enqueued_at", "timestamptz", "server"),
    Column("enqueued_xid", "bigint", "server"),
)

FROM_SENDER = tuple(column for column in COLUMNS if column.set_by == "sender")
COPIED = tuple(
    column for column in COLUMNS if column.name not in ("queue_id", "source_id", "failure")
)
COMMON = tuple(column for column in COLUMNS if column.common)
KEPT = tuple(column for column in COLUMNS if column.kept)


def read_columns(**instead: str) -> str:
    """Return ``{read_columns}``, with other SQL for some columns.

    >>> read_columns(body="NULL").startswith(", NULL, m.headers, m.scheduled_at, ")
    True
    """
    return "".join(
        f", {instead.get(column.name, column.read)}" for column in COLUMNS if column.read
    )


PLACEHOLDERS = {
    "common_columns": ", ".join(column.name for column in COMMON),
    "common_values": ", ".join(f"%({column.name})s::{column.type}" for column in COMMON),
    "kept_columns": ", ".join(column.name for column in KEPT),
    "copied_columns": ", ".join(column.name for column in COPIED),
    "read_columns": read_columns(),
    "read_names": "".join(f", read_{column.name}" for column in COLUMNS if column.read),
    "no_columns": ", NULL" * sum(column.read is not None for column in COLUMNS),
}
