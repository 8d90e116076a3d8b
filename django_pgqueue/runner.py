"""How the engine's statements run on a connection of Django's.

Django binds values in the client, so the server parses and plans each statement each time: for one
message that is half of a read's cost. psycopg prepares a statement that runs again and again, and
the server then keeps its plan, which is at most ten seconds old
(:func:`django_pgqueue.engine.runner.dated`). A pooler may exchange the session between two
statements, and another client's statement may have the same name there: so nothing is prepared
unless the server that answers is the one that the connection was opened to (:func:`_is_direct`).

``PGQUEUE["PREPARE_STATEMENTS"] = False`` turns preparing off.
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
from django_pgqueue.engine.runner import Rows, dated

#: From which run of the same text on psycopg prepares a statement.
THRESHOLD = 5
#: Cursors of a connection at most: each holds its last row, with a body of any size.
CURSORS = 16

# The sessions that were looked at, and whether statements may be prepared there.
_found: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# The cursors of each of Django's connections, by statement. A new cursor costs a tenth of the time
# that a send takes in this process; another statement on a used cursor, a tenth of a read's.
_cursors: WeakKeyDictionary[Any, dict[str, psycopg.Cursor[Any]]] = WeakKeyDictionary()


class DjangoRunner:
    """A database by its alias: statements run on Django's connection to it, in this thread."""

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
        # The transaction that TestCase wraps around each test does not count, as it does not for
        # atomic(durable=True).
        blocks = connections[self.alias].atomic_blocks
        in_test_only = bool(blocks) and all(getattr(b, "_from_testcase", False) for b in blocks)
        return self.alone or in_test_only

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
            rows = own.execute(dated(text), params).fetchall()
        if len(rows) > 1:
            own.close()  # a cursor holds its result until its next statement
        return rows

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)


@cache
def runner(alias: str) -> DjangoRunner:
    """The runner of this database."""
    return DjangoRunner(alias)


def database_key(alias: str) -> tuple[str, str]:
    """An alias with the database that it stands for, which tests change: for what is remembered.

    Not asked of ``connections[alias]``: to find out whose connection that is takes longer.
    """
    known = connections.settings.get(alias) or connections[alias].settings_dict
    return alias, str(known["NAME"])


def preparing_cursor(connection: Any, text: str) -> psycopg.Cursor[Any] | None:
    """A cursor that prepares ``text``, where statements are prepared on this connection; opens it.

    It is psycopg's own: the server binds the values. Run the statement and fetch its rows: the next
    call for the same text returns the same cursor, which still knows how to adapt the values.
    """
    if (
        not settings.PREPARE_STATEMENTS
        # Code that watches statements sees those of Django's cursor.
        or connection.execute_wrappers
        or connection.queries_logged
    ):
        return None
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    session = connection.connection
    shared = connection.allow_thread_sharing  # then two threads may run a statement at once
    cursors = {} if shared else _cursors.setdefault(connection, {})
    cursor = cursors.pop(text, None)
    if cursor is None and len(cursors) == CURSORS:
        cursor = cursors.pop(next(iter(cursors)))  # of the statement that ran longest ago
    if cursor is None or cursor.connection is not session or cursor.closed:
        known = _found.get(session)
        if known is None:
            with connection.wrap_database_errors:
                known = _look(connection, session)
        if not known:
            return None
        cursor = psycopg.Cursor(session)
    cursors[text] = cursor
    return cursor


def _look(connection: Any, session: Any) -> bool:
    if connection.needs_rollback:
        return False
    factory: Any = session.cursor_factory
    found = _found[session] = (
        not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        # Django gives dates another zone by a cursor of its own.
        and connection.timezone is dt.timezone.utc
        # A project that put its own cursors in the place of Django's, or that has psycopg prepare
        # by a threshold of its own, keeps what it chose.
        and isinstance(session, psycopg.Connection)
        and factory is Cursor
        and session.prepare_threshold is None
        and _is_direct(session)
    )
    if found:
        session.prepare_threshold = THRESHOLD  # Django's own cursors never prepare
    return found


def _is_direct(session: psycopg.Connection[Any]) -> bool:
    """A pooler tells its clients another process id than that of the server's process."""
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] == session.info.backend_pid
