"""Locks that other sessions wait behind: asked for briefly, and again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import DatabaseError

from django_pgqueue.errors import QueueBusy
from django_pgqueue.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE, sqlstate

__all__ = ["KEPT", "briefly", "keep_vacuum_off", "milliseconds", "set_locally", "settings_for"]

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


def keep_vacuum_off(cursor: Any, tables: Iterable[str]) -> None:
    """Keep vacuum off some tables until the end of the transaction; an autovacuum is cancelled.

    PostgreSQL cancels an autovacuum once a session has waited for it for ``deadlock_timeout``,
    which is longer than :func:`briefly` waits. So it is waited for here, by a lock that conflicts
    with no read and no write: no other session waits behind it.
    """
    cursor.execute(
        "SELECT 2 * current_setting('deadlock_timeout')::interval, "
        "ARRAY(SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL)",
        [list(tables)],
    )
    long_enough, there = cursor.fetchone()
    if there:  # a queue that has lost its tables can still be dropped
        timeout = milliseconds(long_enough.total_seconds())
        with settings_for(cursor, lock_timeout=timeout, statement_timeout="0"):
            cursor.execute(f"LOCK TABLE {', '.join(there)} IN SHARE UPDATE EXCLUSIVE MODE")


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
