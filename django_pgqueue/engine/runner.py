"""How a statement runs, and what a transaction is: the one thing that the engine is told."""

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
    """The database of a queue, in this thread: Django's connection to it, or psycopg's own."""

    #: Those of :mod:`django_pgqueue.settings`, as attributes.
    settings: Any

    @property
    def alias(self) -> str:
        """What errors call the database."""

    @property
    def database(self) -> Hashable:
        """Tells this database from another one: for what is remembered of it."""

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The connection, open."""

    @property
    def errors(self) -> AbstractContextManager[Any]:
        """Inside it, errors of psycopg become those that the caller expects."""

    @property
    def alone(self) -> bool:
        """Whether a statement that runs now is a transaction of its own."""

    @property
    def may_lease(self) -> bool:
        """Whether a lease taken now is committed at once, or stands for that in a test."""

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        """Run a statement, and fetch its rows."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction for the block, or a savepoint in the one that there is."""


def dated(text: str) -> str:
    """The statement with the ten seconds in which it runs: a prepared plan of earlier ones is not
    found.

    A plan made while the tables were empty reads all of them once they are full. To keep it for one
    second made the server plan a statement eleven times a second: five runs before psycopg prepares
    it, five before PostgreSQL keeps a plan for any values, and that one.
    """
    return _ended(text, int(time.monotonic() // PLAN_SECONDS))


@lru_cache(maxsize=256)
def _ended(text: str, period: int) -> str:
    # psycopg keeps how it adapts values while a cursor runs the same object.
    return f"{text}\n-- {period}"
