"""How the engine runs statements and transactions: the interface to a connection."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import psycopg

__all__ = ["Rows", "Runner", "dated"]

Rows = list[tuple[Any, ...]]

#: The longest life of a plan, in seconds.
PLAN_SECONDS = 10


class Runner(Protocol):
    """This thread's connection to a queue's database: Django's, or a plain psycopg connection."""

    #: An object with the settings of :mod:`django_pgqueue.settings` as attributes.
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
        """Whether no transaction is open, so that a statement commits at once."""

    @property
    def may_lease(self) -> bool:
        """Whether a lease is committed at once. True in a test's transaction, too."""

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        """Run a statement and return its rows."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction, or a savepoint in the open one."""


def dated(text: str) -> str:
    """Append a comment to the statement that changes every ten seconds, so that its plan expires.

    A plan made while the tables were empty scans them once they are full. A period of one second
    made the server plan each statement eleven times a second: five times before psycopg prepares
    it, five before PostgreSQL keeps a generic plan, and once for that.
    """
    return _ended(text, int(time.monotonic() // PLAN_SECONDS))


@lru_cache(maxsize=256)
def _ended(text: str, period: int) -> str:
    # psycopg caches the adapters of a statement by the identity of its text.
    return f"{text}\n-- {period}"
