"""Locks that other sessions wait behind: asked for briefly, and again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import DatabaseError

from django_pgqueue.errors import QueueBusy
from django_pgqueue.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE, sqlstate

__all__ = ["KEPT", "briefly", "milliseconds", "set_locally", "settings_for"]

R = TypeVar("R")

#: The errors by which PostgreSQL says that other sessions keep a lock.
KEPT = (LOCK_NOT_AVAILABLE, DEADLOCK)


def briefly(
    act: Callable[[float], R],
    tries: Iterator[tuple[float, float]],
    name: str,
    seconds: float,
    kept: Container[str | None] = KEPT,
) -> R:
    """Do what needs locks on a queue's tables, and wait for them a moment at a time.

    All other sessions wait behind one that waits for a lock. So ``act``, a transaction, is told for
    how many seconds it may wait; between two tries is a pause, in which the others go first.
    ``tries`` yields both, in seconds, without end.

    Raises QueueBusy when the next try would come later than after this many seconds.
    """
    until = time.monotonic() + seconds
    while True:
        stall, pause = next(tries)
        try:
            return act(stall)
        except DatabaseError as error:
            if sqlstate(error) not in kept:
                raise
            if time.monotonic() + pause > until:
                raise QueueBusy(name, seconds) from error
        time.sleep(pause)


@contextmanager
def settings_for(cursor: Any, **settings: str) -> Iterator[None]:
    """Settings of the server for a block within a transaction.

    After an error the rollback ends them.
    """
    names = ", ".join("current_setting(%s)" for _ in settings)
    cursor.execute(f"SELECT {names}", list(settings))
    usual = dict(zip(settings, cursor.fetchone(), strict=True))
    set_locally(cursor, **settings)
    yield
    set_locally(cursor, **usual)


def set_locally(cursor: Any, **settings: str) -> None:
    """Settings of the server until the end of the transaction."""
    for name, value in settings.items():
        cursor.execute("SELECT set_config(%s, %s, true)", [name, value])


def milliseconds(seconds: float) -> str:
    """A length of time as the server's settings have it.

    >>> milliseconds(0.05)
    '50ms'
    """
    return f"{max(1, int(seconds * 1000))}ms"
