"""Locks that others wait behind: asked for briefly, and again after a pause."""

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

#: What PostgreSQL says when others keep a lock.
KEPT = (LOCK_NOT_AVAILABLE, DEADLOCK)


def briefly(
    act: Callable[[float], R],
    tries: Iterator[tuple[float, float]],
    name: str,
    seconds: float,
    kept: Container[str | None] = KEPT,
) -> R:
    """Do what needs locks on a queue's tables, without standing in line for them for long.

    Everybody else would have to wait behind. ``act`` is a transaction, and is told for how long it
    may wait. The tries, which have no end, say that, and how long the others have to themselves
    after each, in seconds.

    Raises QueueBusy when the next try would come later than after so many seconds.
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
    """A span of time as the server's settings have it.

    >>> milliseconds(0.05)
    '50ms'
    """
    return f"{max(1, int(seconds * 1000))}ms"
