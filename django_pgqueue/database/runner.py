"""Runs the engine's statements on Django's connections, prepared by psycopg.

Django binds values in the client, so the server parses and plans a statement at each run. That is
half the cost of reading one message. psycopg prepares a statement that runs repeatedly; its plan is
renewed now and then (:class:`django_pgqueue.engine.runner.Plan`). Nothing is prepared
behind a pooler, which may change the session between two statements (:func:`_is_direct`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections, transaction
from django.db.backends.postgresql.base import Cursor

from django_pgqueue.conf import settings
from django_pgqueue.engine.runner import Plan, Rows

#: psycopg prepares a statement once it has run this many times.
THRESHOLD = 5
#: Maximum number of cursors per connection. Each holds its last row, with a body of any size.
CURSORS = 16


class PlannedCursor(psycopg.Cursor[Any]):
    """A cursor for one statement at a time."""

    plan: Plan


# For each tested session: whether statements may be prepared in it.
_found: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# The cursors of each Django connection, by statement. Making a new cursor takes a tenth of the time
# of a send; running another statement on a used cursor takes a tenth of the time of a read.
_cursors: WeakKeyDictionary[Any, dict[str, PlannedCursor]] = WeakKeyDictionary()


class DjangoRunner:
    """Runs statements on this thread's Django connection to one database."""

    __slots__ = ("alias",)

    settings = settings

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def database(self) -> tuple[str, str]:
        return database_key(self.alias)

    @property
    def session(self) -> Any:
        connection = connections[self.alias]
        connection.ensure_connection()
        return connection.connection

    @property
    def errors(self) -> AbstractContextManager[Any]:
        errors: AbstractContextManager[Any] = connections[self.alias].wrap_database_errors
        return errors

    @property
    def alone(self) -> bool:
        connection = connections[self.alias]
        return not connection.in_atomic_block and connection.get_autocommit()

    @property
    def may_lease(self) -> bool:
        connection = connections[self.alias]
        return self.alone or (bool(connection.atomic_blocks) and not open_blocks(connection))

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        connection = connections[self.alias]
        own = preparing_cursor(connection, text)
        if own is None:
            with connection.cursor() as cursor:
                cursor.execute(text, params)
                rows: Rows = cursor.fetchall()
                return rows
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            rows = own.plan.run(own, params)
        if len(rows) > 1:
            own.close()  # otherwise it holds these rows until its next statement
        return rows

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)


def open_blocks(connection: Any) -> int:
    """Return how many transactions and savepoints are open on a connection.

    Ignores the transaction that TestCase opens around each test, as atomic(durable=True) does.
    """
    return sum(not getattr(each, "_from_testcase", False) for each in connection.atomic_blocks)


@cache
def runner(alias: str) -> DjangoRunner:
    return DjangoRunner(alias)


def database_key(alias: str) -> tuple[str, str]:
    """Return a key for caches: the alias, and its database's name, which tests change.

    Reads the settings if possible, since ``connections[alias]`` takes longer.
    """
    known = connections.settings.get(alias) or connections[alias].settings_dict
    return alias, str(known["NAME"])


def preparing_cursor(connection: Any, text: str) -> PlannedCursor | None:
    """Return a cursor that prepares ``text``; None if this connection prepares nothing.

    Opens the connection. The next call with the same text returns the same cursor, which has cached
    how to adapt the values. So run the statement and fetch its rows before the next call.
    """
    if (
        not settings.PREPARE_STATEMENTS
        # Execute wrappers and query logs see only the statements of Django's own cursors.
        or connection.execute_wrappers
        or connection.queries_logged
    ):
        return None
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    session = connection.connection
    shared = connection.allow_thread_sharing  # threads must not share a cursor
    cursors = {} if shared else _cursors.setdefault(connection, {})
    cursor = cursors.pop(text, None)
    # A cursor that returned many rows is closed, and its plan goes on.
    plan = cursor.plan if cursor is not None and cursor.connection is session else None
    if cursor is None and len(cursors) == CURSORS:
        cursor = cursors.pop(next(iter(cursors)))  # the least recently used
    if cursor is None or cursor.connection is not session or cursor.closed:
        known = _found.get(session)
        if known is None:
            with connection.wrap_database_errors:
                known = _look(connection, session)
        if not known:
            return None
        cursor = PlannedCursor(session)
    cursor.plan = plan or Plan(text)
    cursors[text] = cursor
    return cursor


def _look(connection: Any, session: Any) -> bool:
    if connection.needs_rollback:
        return False
    factory: Any = session.cursor_factory
    found = _found[session] = (
        not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        # For time zones other than UTC, Django makes a special cursor.
        and connection.timezone is dt.timezone.utc
        # A project's own cursor class or prepare_threshold takes precedence.
        and isinstance(session, psycopg.Connection)
        and factory is Cursor
        and session.prepare_threshold is None
        and _is_direct(session)
    )
    if found:
        session.prepare_threshold = THRESHOLD  # Django's own cursors never prepare
    return found


def _is_direct(session: psycopg.Connection[Any]) -> bool:
    """Whether the session has no pooler. A pooler reports a process id other than the server's."""
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == session.info.backend_pid
