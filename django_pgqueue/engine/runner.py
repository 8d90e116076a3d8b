"""How the engine runs statements and transactions: the interface to a connection."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

try:
    import psycopg
except ImportError as error:
    raise ImportError(
        f"django_pgqueue needs psycopg 3, which cannot be imported ({error}): "
        f"pip install 'psycopg[binary]'. psycopg2 does not replace it"
    ) from error

__all__ = ["READ_COMMITTED", "Plan", "Rows", "Runner"]

Rows = list[tuple[Any, ...]]

#: The first statement of a transaction that looks again at what it has waited for.
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

#: The shortest and the longest time that a query plan is used, in seconds.
PLAN_SECONDS, LONGEST_PLAN_SECONDS = 10, 300
#: The number of runs beside which planning anew costs little.
ENOUGH = 100
#: A run of more seconds may have had a plan for empty tables.
SLOW = 0.01


class Runner(Protocol):
    """This thread's connection to a queue's database: Django's, or a plain psycopg connection."""

    #: An object with the settings of :mod:`django_pgqueue.engine.settings` as attributes.
    settings: Any

    @property
    def alias(self) -> str:
        """The name of the database in error messages."""

    @property
    def database(self) -> Hashable:
        """The key of this database in caches."""

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The connection, open."""

    @property
    def errors(self) -> AbstractContextManager[Any]:
        """A context that converts psycopg's errors to those that the caller expects."""

    @property
    def alone(self) -> bool:
        """Whether a statement commits at once, because no transaction is open."""

    @property
    def may_lease(self) -> bool:
        """Whether a lease commits at once. Also true in a test's transaction."""

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        """Run a statement and return its rows."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction, or a savepoint in the open one."""


class Plan:
    """The text of a statement on one connection. It changes now and then, so that its plan ends.

    A plan made for empty tables would still scan them after they have filled. But the server plans
    each new text eleven times: five times before psycopg prepares it, five times before PostgreSQL
    makes a generic plan, and once for that plan. So a text remains while the statement runs seldom
    and fast.
    """

    __slots__ = ("_began", "_runs", "_statement", "_text")

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._runs = 0
        self._renew(time.monotonic())

    def run(self, cursor: psycopg.Cursor[Any], params: Mapping[str, Any] | None) -> Rows:
        """Run the statement on a cursor of the connection, and return its rows."""
        now = time.monotonic()
        age = now - self._began
        if age >= PLAN_SECONDS and (self._runs >= ENOUGH or age >= LONGEST_PLAN_SECONDS):
            self._renew(now)
        runs, self._runs = self._runs, ENOUGH  # an error may come of the plan, too
        rows = cursor.execute(self._text, params).fetchall()
        if time.monotonic() - now <= SLOW:
            self._runs = runs + 1
        return rows

    def _renew(self, now: float) -> None:
        # By time: the same statement may have had another Plan on this connection.
        self._text = f"{self._statement}\n-- {int(now // PLAN_SECONDS)}"
        self._began, self._runs = now, 0
