"""How a statement runs on a connection of Django's.

Django binds values in the client, so the server parses and plans each statement each time: for one
message that is half of a read's cost. psycopg prepares a statement that runs again and again, and
the server then keeps its plan. Two dangers, and how each is met:

- A pooler may exchange the session between two statements, and another client's statement may have
  the same name there. Nothing is prepared unless the server that answers is the one that the
  connection was opened to (:func:`_is_direct`).
- A plan made while the tables were empty reads all of them once they are full. So a statement's
  text ends with the ten seconds in which it runs (:func:`dated`), and no plan is older than those.
  To keep it for one second made the server plan a statement eleven times a second: five runs before
  psycopg prepares it, five before PostgreSQL keeps a plan for any values, and that one.

``PGQUEUE["PREPARE_STATEMENTS"] = False`` turns preparing off.
"""

from __future__ import annotations

import datetime as dt
import time
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.postgresql.base import Cursor

from django_pgqueue.conf import settings

__all__ = ["dated", "preparing_cursor"]

#: From which run of the same text on psycopg prepares a statement.
THRESHOLD = 5
#: The longest life of a plan, in seconds.
PLAN_SECONDS = 10
#: Cursors of a connection at most: each holds its last row, with a body of any size.
CURSORS = 16

# The sessions that were looked at, and whether statements may be prepared there.
_found: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# The cursors of each of Django's connections, by statement. To make one each time is a tenth of a
# send's time in this process; to run another statement by the same one, a tenth of a read's.
_cursors: WeakKeyDictionary[Any, dict[str, psycopg.Cursor[Any]]] = WeakKeyDictionary()


def dated(text: str) -> str:
    """The statement with the ten seconds in which it runs: a plan of earlier ones is not found."""
    return _ended(text, int(time.monotonic() // PLAN_SECONDS))


@lru_cache(maxsize=256)
def _ended(text: str, period: int) -> str:
    # psycopg keeps how it adapts values while a cursor runs the same object.
    return f"{text}\n-- {period}"


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
