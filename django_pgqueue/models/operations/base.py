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
from django_pgqueue.models.operations import prepared
from django_pgqueue.models.queue import Queue
from django_pgqueue.sqlstates import UNDEFINED_TABLE, sqlstate

__all__ = ["Ahead", "MessageT", "Operations", "twin"]

P = ParamSpec("P")
R = TypeVar("R")
#: The model whose manager it is: naming it here would close a circle.
MessageT = TypeVar("MessageT", bound=models.Model)
S = TypeVar("S")

# What is said when the tables of a queue are gone; the second is our trigger's own code.
_QUEUE_GONE = (UNDEFINED_TABLE, "PQ404")


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
        return self._on(queue, using, self._fetch, name, params, tables, ahead)

    def _on(
        self,
        queue: str | Queue,
        using: str | None,
        act: Callable[Concatenate[Queue, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Queue, R]:
        """Do something to a queue's tables: ``act(found, *args, **kwargs)``.

        What was remembered of a queue may be stale, when it was dropped and made again elsewhere:
        then it is asked for once more, unless that is too late inside a broken transaction.
        """
        found = self.resolve(queue, using)
        try:
            return found, act(found, *args, **kwargs)
        except DatabaseError as error:
            if sqlstate(error) not in _QUEUE_GONE:
                raise
            Queue.objects.forget(found)
            if not connections[found.alias].get_autocommit():
                raise QueueNotFound(found.name, found.alias) from error
        found = self.resolve(found.name, found.alias)
        return found, act(found, *args, **kwargs)

    @staticmethod
    def _fetch(
        queue: Queue,
        name: str,
        params: Mapping[str, Any] | Callable[[Queue], Mapping[str, Any]],
        tables: Mapping[str, object] | None,
        ahead: Ahead | None,
    ) -> list[tuple[Any, ...]]:
        connection = connections[queue.alias]
        values = params(queue) if callable(params) else params
        here = prepared.prepared_on(connection)
        failed: DatabaseError | None = None
        if here is not None:
            try:
                rows = _fetch_prepared(here, connection, name, queue, values, tables or {}, ahead)
            except DatabaseError as error:
                if not prepared.lost(error):
                    raise
                failed = error
            else:
                if rows is not None:
                    return rows
        statement = queries.render(name, {**queue.tables, **(tables or {})})
        if ahead is None or ahead.rows is not None:
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                rows = cursor.fetchall()
        else:
            first = queries.render(ahead.name, {**queue.tables, **ahead.tables})
            rows = _fetch_both(connection, first, ahead, statement, values)
        if failed is not None:
            # It was not the statement itself.
            prepared.stop(queue.alias, failed)
        return rows


def _fetch_prepared(
    here: prepared.Prepared,
    connection: Any,
    name: str,
    queue: Queue,
    values: Mapping[str, Any],
    tables: Mapping[str, object],
    ahead: Ahead | None,
) -> list[tuple[Any, ...]] | None:
    """What it returns, or None when it is to be run as ever."""
    statement = here.statement(connection, name, queue, tables)
    if ahead is None or ahead.rows is not None:
        if statement is None:
            return None
        rows = statement.fetch(connection, {**values, "queue_id": queue.id})
    else:
        first = here.statement(connection, ahead.name, queue, ahead.tables)
        # Whoever looks at what is run wants to see more than names.
        if statement is None or first is None or connection.execute_wrappers:
            return None
        texts = first.execute(connection), statement.execute(connection)
        rows = _fetch_both(connection, texts[0], ahead, texts[1], {**values, "queue_id": queue.id})
    if not rows and statement.for_any and here.doubts(queue):
        return None
    return rows


def _fetch_both(
    connection: Any, first: str, ahead: Ahead, second: str, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run two statements as one, which is a transaction of its own or part of the caller's."""
    with prepared.client_cursor(connection) as cursor:
        cursor.execute(f"{first};\n{second}", {**ahead.params, **values})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        cursor.nextset()
        ahead.rows, rows = rows, cursor.fetchall()
    return rows
