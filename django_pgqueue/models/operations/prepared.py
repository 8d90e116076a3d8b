"""Statements that run again and again on one connection: the server keeps their plans.

Django binds values in the client, so that the server parses and plans each statement each time:
for one message that is half of what a read costs it. The few statements in :data:`HOT` are
prepared, on a connection in autocommit. In a transaction they are not: there an error could not be
mended.

A kept plan is a trap: what was made while the tables were empty goes through all of them once they
are full, until they are analyzed. So a plan is kept for a second at the most, and is used from the
fifth run within that second on: who runs less often would gain nothing.

Each queue has texts of its own, and what is prepared for it runs quickest. Whoever goes round among
many queues does not come to the same one five times in a second; for him most statements have a
second form that serves any queue (:data:`FOR_ANY`), in which the queue is a value.

A prepared statement is bound to its session, which a pooler may exchange. What is not found again
runs as ever, and no more is prepared on that database. It has a name made from its text, so that
even where sessions are exchanged no name ever means another statement.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import psycopg
from django.db import DatabaseError
from django.db.backends.postgresql.base import Cursor
from psycopg.types.datetime import TimestamptzLoader

from django_pgqueue import ddl, queries, signals
from django_pgqueue.conf import settings
from django_pgqueue.models.queue import Queue
from django_pgqueue.sqlstates import CHECK_VIOLATION, sqlstate

__all__ = ["HOT", "Prepared", "Statement", "client_cursor", "lost", "prepared_on", "stop"]

#: What may be prepared: a plan that knows no values has to be good, however full the tables are.
#: tests/queries/test_plans_prepared.py sees to that.
HOT = frozenset(
    {
        "archive",
        "archive_batch",
        "archive_part",
        "delete",
        "fail",
        "next_due",
        "pop",
        "read",
        "read_ready",
        "release",
        "retry",
        "send",
        "send_batch",
        "send_batch_full",
        "send_full",
        "send_once",
        "set_vt",
        "unfold",
    }
)

#: What has a form for any queue: all that looks nothing up in the queue's leaves, or can ask
#: ``pgqueue_bodies`` to.
FOR_ANY = HOT - {"delete", "pop"}

#: Seconds that a plan is kept at the most.
KEPT_SECONDS = 1.0
#: From which run within them on a statement is run prepared.
FROM_RUN = 5
#: So many on one connection at the most: each takes 15 to 200 KB of its server process.
MOST = 50
#: When there are as many, one that did not run for so many seconds gives way.
IDLE_SECONDS = 10.0
# A cursor holds the rows it brought until it is used again: it is not kept for more than a few.
_FEW_ROWS = 10

# What PostgreSQL says of a prepared statement that is not there, or already there, or whose rows
# have other types by now. It says so before anything is done.
_LOST = ("26000", "42P05", "0A000")

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_ATTRIBUTE = "_pgqueue_prepared"

#: The databases where it did not work.
_stopped: set[str] = set()


class Statement:
    """One statement on the tables of one queue, or ``for_any``, on one connection."""

    __slots__ = ("_cursor", "_execute", "_name", "_types", "for_any", "last_run", "sql")

    def __init__(self, name: str, sql: str, *, for_any: bool = False) -> None:
        self._name = name
        self.sql = sql
        self.for_any = for_any
        self.last_run = 0.0
        self._cursor: Any = None
        # The names it has in the server: by the types of the values that are bound, and as EXECUTE
        # calls it, which needs no types.
        self._types: dict[tuple[int, ...], bytes] = {}
        self._execute: str | None = None

    def fetch(self, connection: Any, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run it; the values travel beside the text."""
        cursor = self._cursor
        if cursor is None or cursor.db is not connection or cursor.zone != connection.timezone:
            cursor = _cursor(connection, _ByName)
            cursor.cursor.statement, cursor.zone = self, connection.timezone
            if connection.timezone is dt.timezone.utc:
                # Django's loader is psycopg's own, to give each date, in Python, the zone it has.
                cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        else:
            connection.validate_thread_sharing()
        self._cursor = None  # whatever fails, the next run begins with a new one
        cursor.execute(self.sql, values)
        with connection.wrap_database_errors:
            rows: list[tuple[Any, ...]] = cursor.cursor.fetchall()
        if len(rows) <= _FEW_ROWS:
            self._cursor = cursor
        return rows

    def execute(self, connection: Any) -> str:
        """The statement that runs it by name, the values written into the text."""
        if self._execute is None:
            names: dict[str, int] = {}

            def placed(match: re.Match[str]) -> str:
                given = match[1]
                return f"${names.setdefault(given, len(names) + 1)}" if given else "%"

            text = _PLACEHOLDER.sub(placed, self.sql)
            name = self._named("")
            with connection.wrap_database_errors:
                connection.connection.execute(f"PREPARE {name} AS {text}")
            self._execute = f"EXECUTE {name} ({', '.join(f'%({each})s' for each in names)})"
        return self._execute

    def name_for(self, types: tuple[int, ...]) -> tuple[bytes, bool]:
        """What it is called in the server with values of these types, and whether it is there."""
        known = self._types.get(types)
        return (known, True) if known else (self._named(types).encode(), False)

    def is_there(self, types: tuple[int, ...], name: bytes) -> None:
        self._types[types] = name

    def names(self) -> Iterable[str]:
        """All its names in the server."""
        yield from (name.decode() for name in self._types.values())
        if self._execute is not None:
            yield self._named("")

    def _named(self, types: object) -> str:
        text = hashlib.blake2b(f"{self.sql}{types}".encode(), digest_size=8)
        return f"pgqueue_{self._name}_{text.hexdigest()}"


class _ByName(psycopg.Cursor[Any]):
    """Runs one statement by the name it has in the server.

    psycopg's own names are numbers: behind a pooler the same one may be another statement. These
    are methods that it keeps to itself; should it ever stop calling them, nothing is prepared.
    """

    statement: Statement

    def _get_prepared(self, pgq: Any, prepare: bool | None = None) -> tuple[Any, bytes]:
        usual, _ = super()._get_prepared(pgq, False)
        name, is_there = self.statement.name_for(pgq.types)
        return (type(usual).YES if is_there else type(usual).SHOULD), name

    def _send_query_prepared(self, name: bytes, pgq: Any, *, binary: bool | None = None) -> None:
        self.statement.is_there(pgq.types, name)
        super()._send_query_prepared(name, pgq, binary=binary)


class Prepared:
    """The statements of one connection to the server: which of them are prepared."""

    def __init__(self) -> None:
        self._statements: dict[tuple[object, ...], Statement] = {}
        self._kept_until = 0.0
        # How often what may be prepared ran since then.
        self._counts: dict[tuple[object, ...], int] = {}
        #: Whether there may be plans of an earlier second.
        self._stale = False
        # The queues of which nothing was believed since then.
        self._doubted: set[int] = set()

    def statement(
        self, connection: Any, name: str, queue: Queue, tables: Mapping[str, object]
    ) -> Statement | None:
        """The statement when it has run often enough, counting this run; None until then."""
        if name not in HOT:
            return None
        now = time.monotonic()
        if now >= self._kept_until:
            self._kept_until = now + KEPT_SECONDS
            self._counts.clear()
            self._doubted.clear()
            self._stale = bool(self._statements)
        what = (name, queue.unlogged, *tables.values())
        own, for_any = (queue.id, *what), (None, *what)
        statement = None
        if self._is_often(own) and (statement := self._statements.get(own)) is None:
            statement = self._prepare(connection, own, name, {**queue.tables, **tables}, now)
        # Of a condition the leaves are asked.
        shared = name in FOR_ANY and tables.get("any_body") != "false"
        often = statement is None and shared and self._is_often(for_any)
        if often and (statement := self._statements.get(for_any)) is None:
            names = {**_names_for_any(queue.unlogged), **tables}
            statement = self._prepare(connection, for_any, name, names, now)
        if statement is None:
            return None
        if self._stale:
            self._run(connection, "DISCARD PLANS")
            self._stale = False
        statement.last_run = now
        return statement

    def doubts(self, queue: Queue) -> bool:
        """Whether it should be asked by a text of its own, when for any queue nothing came.

        Then it may be gone, and only its own text fails. Once in a second is enough.
        """
        doubts = queue.id not in self._doubted
        self._doubted.add(queue.id)
        return doubts

    def _is_often(self, key: tuple[object, ...]) -> bool:
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count >= FROM_RUN

    def _prepare(
        self,
        connection: Any,
        key: tuple[object, ...],
        name: str,
        names: Mapping[str, object],
        now: float,
    ) -> Statement | None:
        if len(self._statements) >= MOST and not self._one_gives_way(connection, now):
            return None
        sql = queries.render(name, names)
        # Some are the same for logged and unlogged queues, and have one name in the server.
        alike = [known for known in self._statements.values() if known.sql == sql]
        statement = alike[0] if alike else Statement(name, sql, for_any=key[0] is None)
        self._statements[key] = statement
        return statement

    def _one_gives_way(self, connection: Any, now: float) -> bool:
        idle = min(self._statements.values(), key=lambda statement: statement.last_run)
        if now - idle.last_run < IDLE_SECONDS:
            return False
        self._statements = {k: kept for k, kept in self._statements.items() if kept is not idle}
        for name in idle.names():
            self._run(connection, f"DEALLOCATE {name}")
        return True

    @staticmethod
    def _run(connection: Any, command: str) -> None:
        with connection.wrap_database_errors:
            connection.connection.execute(command)


def prepared_on(connection: Any) -> Prepared | None:
    """What is prepared on a connection; None where nothing may be."""
    if (
        connection.in_atomic_block
        or connection.alias in _stopped
        or not settings.PREPARE_STATEMENTS
        # The log is to show the values, too.
        or connection.queries_logged
    ):
        return None
    connection.close_if_health_check_failed()
    if not connection.get_autocommit():
        return None
    session = connection.connection
    try:
        found: Prepared | None = getattr(session, _ATTRIBUTE)
    except AttributeError:
        found = Prepared() if _may_prepare(connection) else None
        setattr(session, _ATTRIBUTE, found)
    return found


def _may_prepare(connection: Any) -> bool:
    session = connection.connection
    return (
        # What Django asks for where a pooler may exchange the session between two transactions.
        not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        # Whoever has put cursors of his own in Django's place wants to see what runs on them, and
        # whoever set a threshold has psycopg prepare what he runs.
        and issubclass(type(session), psycopg.Connection)
        and session.cursor_factory is Cursor
        and session.prepare_threshold is None
    )


@cache
def _names_for_any(unlogged: bool) -> dict[str, object]:
    return {**ddl.names_for_any(unlogged=unlogged), "bodies": queries.Part("bodies_of_any")}


def lost(error: DatabaseError) -> bool:
    """Whether that is said of a prepared statement and not of what it does.

    That the parent has no leaf for a queue is said by the form for any queue alone.
    """
    state = sqlstate(error)
    if state == CHECK_VIOLATION:
        cause: Any = error.__cause__
        return cause.diag.constraint_name is None
    return state in _LOST


def stop(alias: str, error: DatabaseError) -> None:
    """Prepare nothing more on this database, as long as the process lives."""
    if alias not in _stopped:
        _stopped.add(alias)
        signals.preparing_stopped.send_robust(alias, error=error)


def client_cursor(connection: Any) -> Any:
    """Django's cursor that binds values in the client, which can run two statements as one."""
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    usual = connection.connection.cursor_factory
    binds = isinstance(usual, type) and issubclass(usual, psycopg.Cursor)
    if binds and not issubclass(usual, psycopg.ClientCursor):
        return _cursor(connection, Cursor)
    return connection.cursor()


def _cursor(connection: Any, kind: Any) -> Any:
    """A cursor of this kind, made and wrapped by Django like any other."""
    session = connection.connection
    usual, session.cursor_factory = session.cursor_factory, kind
    try:
        return connection.cursor()
    finally:
        session.cursor_factory = usual
