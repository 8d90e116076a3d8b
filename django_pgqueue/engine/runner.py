"""How the engine runs statements and transactions: the interface to a connection."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

try:
    import psycopg
except ImportError as error:
    raise ImportError(
        f"django_pgqueue needs psycopg 3, which cannot be imported ({error}): "
        f"pip install 'psycopg[binary]'. psycopg2 does not replace it"
    ) from error

__all__ = ["Rows", "Runner", "dated"]

Rows = list[tuple[Any, ...]]

#: The longest time that a query plan is used, in seconds.
PLAN_SECONDS = 10


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


def dated(text: str) -> str:
    """Append a comment that changes every ten seconds, so that the statement's plan expires.

    A plan made for empty tables would still scan them after they have filled. With a period of one
    second the server planned each statement eleven times a second: five times before psycopg
    prepares it, five times before PostgreSQL makes a generic plan, and once for that plan.
    """
    return _ended(text, int(time.monotonic() // PLAN_SECONDS))


@lru_cache(maxsize=256)
def _ended(text: str, period: int) -> str:
    # Cached, because psycopg caches a statement's adapters by the identity of its text.
    return f"{text}\n-- {period}"
