"""How an operation reaches the database, and how it gets its async twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, models

from django_pgqueue import queries
from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models.queue import Queue

__all__ = ["Ahead", "MessageT", "Operations", "twin"]

P = ParamSpec("P")
R = TypeVar("R")
#: The model whose manager it is: naming it here would close a circle.
MessageT = TypeVar("MessageT", bound=models.Model)
S = TypeVar("S")

# What PostgreSQL says when the tables of a queue are gone: undefined_table, our trigger's own
# code, and check_violation for a row that fits no leaf.
_QUEUE_GONE = ("42P01", "PQ404")


def twin(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Awaitable[R]]:
    """The async twin of an operation: the same arguments, run in Django's sync thread."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(method, thread_sensitive=True)(self, *args, **kwargs)

    run.__name__ = f"a{method.__name__}"
    run.__qualname__ = run.__qualname__.replace(method.__name__, run.__name__)
    run.__doc__ = f"The async twin of :meth:`{method.__name__}`."
    return run


@dataclass(eq=False)
class Ahead:
    """A statement to be run in one round trip and one commit with the one that comes after it."""

    name: str
    params: Mapping[str, Any]
    tables: Mapping[str, object]
    #: What it returned, once it has run.
    rows: list[tuple[Any, ...]] | None = None


class Operations(models.Manager[MessageT]):
    """The base of the operations: one statement, on the tables of one queue."""

    use_in_migrations = False

    def resolve(self, queue: str | Queue, using: str | None = None) -> Queue:
        """The queue of that name. Raises QueueNotFound."""
        if using is None and isinstance(queue, Queue):
            return queue
        return Queue.objects.resolve(queue, using or self._db)

    def _run(
        self,
        name: str,
        queue: str | Queue,
        using: str | None,
        params: Mapping[str, Any] | Callable[[Queue], Mapping[str, Any]],
        tables: Mapping[str, object] | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[Queue, list[tuple[Any, ...]]]:
        """Run ``queries/<name>.sql`` on a queue and fetch what it returns.

        ``params`` may depend on the queue; ``tables`` names tables of another queue besides.
        ``ahead`` is sent with it, unless it has run already.
        A single statement is a transaction of its own, or part of the caller's.
        """
        return self._on(queue, using, lambda found: self._fetch(name, found, params, tables, ahead))

    def _on(
        self, queue: str | Queue, using: str | None, act: Callable[[Queue], R]
    ) -> tuple[Queue, R]:
        """Do something to a queue's tables.

        What was remembered of a queue may be stale, when it was dropped and made again elsewhere:
        then it is asked for once more, unless that is too late inside a broken transaction.
        """
        found = self.resolve(queue, using)
        try:
            return found, act(found)
        except DatabaseError as error:
            if getattr(error.__cause__, "sqlstate", None) not in _QUEUE_GONE:
                raise
            Queue.objects.forget(found)
            if not connections[found.alias].get_autocommit():
                raise QueueNotFound(found.name, found.alias) from error
        found = self.resolve(found.name, found.alias)
        return found, act(found)

    @staticmethod
    def _fetch(
        name: str,
        queue: Queue,
        params: Mapping[str, Any] | Callable[[Queue], Mapping[str, Any]],
        tables: Mapping[str, object] | None,
        ahead: Ahead | None,
    ) -> list[tuple[Any, ...]]:
        names = {**queue.tables, **tables} if tables else queue.tables
        statement = queries.render(name, names)
        values = params(queue) if callable(params) else params
        with connections[queue.alias].cursor() as cursor:
            if ahead is None or ahead.rows is not None:
                cursor.execute(statement, values)
            else:
                first = queries.render(ahead.name, {**queue.tables, **ahead.tables})
                cursor.execute(f"{first};\n{statement}", {**ahead.params, **values})
                ahead.rows = cursor.fetchall()
                cursor.nextset()
            return cursor.fetchall()
