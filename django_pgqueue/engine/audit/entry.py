"""Entries of the audit log. Each is written in the transaction of the operation that it records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from django_pgqueue.audit import actor
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.runner import Runner
from django_pgqueue.engine.statements import load

__all__ = [
    *("Entry", "add", "ids_of", "record", "record_settled", "records_settled", "unrecorded"),
]

#: Maximum number of message ids in an entry.
MOST_IDS = 50

_UNRECORDED: ContextVar[bool] = ContextVar("pgqueue_unrecorded", default=False)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record no operation on messages in the block: its caller records all of them together."""
    token = _UNRECORDED.set(True)
    try:
        yield
    finally:
        _UNRECORDED.reset(token)


def record(
    runner: Runner,
    operation: str,
    queue: tuple[int, str | None] | None,
    given: Mapping[str, Any],
    count: int | None = None,
    *,
    ended: bool = True,
) -> int:
    """Write an entry, and return its id.

    ``queue`` is the id and the name of the queue (None: its stored name), ``given`` the arguments
    of the operation; those that are None are left out. ``ended=False`` if :func:`add` adds to
    ``count`` later.
    """
    params = {
        "operation": operation,
        "queue_id": queue and queue[0],
        "queue": queue and queue[1],
        "arguments": json.dumps({key: value for key, value in given.items() if value is not None}),
        "count": count,
        "actor": actor().as_json(),
        "ended": ended,
    }
    [(pk,)] = runner.run(load("audit/begin"), params)
    return int(pk)


def add(runner: Runner, pk: int, count: int, *, ended: bool = False) -> None:
    """Add to the count of an entry, and end it if ``ended``."""
    runner.run(load("audit/add"), {"id": pk, "count": count, "ended": ended})


def ids_of(ids: Sequence[int] | None) -> dict[str, Any]:
    """Return the argument ``ids``: the first ``MOST_IDS`` of the ids, and the number of all."""
    if ids is None:
        return {}
    return {"ids": list(ids[:MOST_IDS]), "of": len(ids) if len(ids) > MOST_IDS else None}


def records_settled() -> bool:
    """Whether messages that are settled by id are recorded here: not if the caller does it."""
    return not _UNRECORDED.get()


def record_settled(queue: OpenQueue, operation: str, done: Sequence[int]) -> None:
    """Record messages that an operator settled by id, if there were any."""
    if done:
        record(queue.runner, operation, (queue.id, queue.name), ids_of(done), len(done))


class Entry:
    """The entry of an operation in steps. It is written with the first step that did something."""

    def __init__(self, queue: OpenQueue, operation: str, given: Mapping[str, Any]) -> None:
        self._queue = queue
        self._operation = operation
        self._given = given
        self._pk: int | None = None
        self._off = _UNRECORDED.get()

    def transaction(self) -> AbstractContextManager[None]:
        """Return the transaction of a step."""
        return self._queue.transaction()

    def add(self, count: int) -> None:
        """Add the messages of a step. Call it in the step's transaction."""
        if self._off or not count:
            return
        queue = self._queue
        if self._pk is None:
            self._pk = record(
                queue.runner,
                self._operation,
                (queue.id, queue.name),
                self._given,
                count,
                ended=False,
            )
        else:
            add(queue.runner, self._pk, count)

    def end(self) -> None:
        """End the entry. An entry without an end is of an operation that was interrupted."""
        if self._pk is not None:
            add(self._queue.runner, self._pk, 0, ended=True)
