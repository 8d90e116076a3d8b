"""An open queue: its id, its database, its tables and settings, and how a statement runs on it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, connections

from django_pgqueue import ddl
from django_pgqueue.engine.connection import dated, preparing_cursor
from django_pgqueue.engine.statements import render
from django_pgqueue.errors import TransactionRefused
from django_pgqueue.sqlstates import UNDEFINED_TABLE, sqlstate

__all__ = ["OpenQueue", "database_key", "is_gone"]

# PostgreSQL's and our trigger's words for tables that were dropped with their queue.
_GONE = (UNDEFINED_TABLE, "PQ404")


@dataclass(frozen=True, eq=False)
class OpenQueue:
    """One queue as operations see it.

    ``find`` opens another queue of the same database by its name, and raises QueueNotFound.
    """

    id: int
    name: str
    alias: str
    unlogged: bool
    visibility_timeout: int
    max_deliveries: int
    dead_letter_queue_id: int | None
    dedup_window: dt.timedelta | None
    created_at: dt.datetime
    find: Callable[[str], OpenQueue]
    #: The object that it was opened from, for the caller's use.
    source: Any = None

    @property
    def connection(self) -> Any:
        """Django's connection to the database of this queue, in this thread."""
        return connections[self.alias]

    @property
    def message_table(self) -> str:
        """This queue's own partition of the table of messages."""
        return ddl.own_table("pgqueue_message", self.id)

    def run(
        self, statement: str, params: Mapping[str, Any] | None = None, /, **names: object
    ) -> list[tuple[Any, ...]]:
        """Run a statement, as ``"read/read"``, and fetch its rows.

        ``params`` are the values in its text; ``names`` are names in it besides those of the
        queue's own tables. It is a transaction of its own, or part of the caller's.
        """
        text = render(statement, self.id, self.unlogged, tuple(names.items()))
        connection = connections[self.alias]
        own = preparing_cursor(connection, text)
        if own is None:
            with connection.cursor() as cursor:
                cursor.execute(text, params)
                rows: list[tuple[Any, ...]] = cursor.fetchall()
                return rows
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            rows = own.execute(dated(text), params).fetchall()
        if len(rows) > 1:
            own.close()  # a cursor holds its result until its next statement
        return rows

    def refuse_transaction(self, operation: str) -> None:
        """A lease is only one once it is committed. Raises TransactionRefused in a transaction.

        The transaction that TestCase wraps around each test does not count, as it does not for
        ``atomic(durable=True)``.
        """
        connection = connections[self.alias]
        blocks = connection.atomic_blocks
        in_test_only = bool(blocks) and all(getattr(b, "_from_testcase", False) for b in blocks)
        if connection.in_atomic_block:
            refused = not in_test_only
        else:
            refused = not connection.get_autocommit()
        if refused:
            raise TransactionRefused(operation)


def database_key(alias: str) -> tuple[str, str]:
    """An alias with the database that it stands for, which tests change: for what is remembered.

    Not asked of ``connections[alias]``: to find out whose connection that is takes longer.
    """
    known = connections.settings.get(alias) or connections[alias].settings_dict
    return alias, str(known["NAME"])


def is_gone(error: DatabaseError) -> bool:
    """Whether this error says that the queue was dropped."""
    return sqlstate(error) in _GONE
