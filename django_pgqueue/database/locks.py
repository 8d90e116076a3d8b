"""Take locks that block other sessions: wait briefly, and retry after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import DatabaseError

from django_pgqueue.engine.runner import READ_COMMITTED
from django_pgqueue.engine.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE, sqlstate
from django_pgqueue.errors import QueueBusy

R = TypeVar("R")

#: SQLSTATEs of statements that failed because other sessions hold a lock.
KEPT = (LOCK_NOT_AVAILABLE, DEADLOCK)


def briefly(
    act: Callable[[float], R],
    tries: Iterator[tuple[float, float]],
    name: str,
    seconds: float,
    kept: Container[str | None] = KEPT,
) -> R:
    """Run ``act``, a transaction that locks a queue's tables, with short waits for the locks.

    A session that waits for a lock blocks every session behind it. ``act`` therefore takes the
    number of seconds that it may wait. After a failed try comes a pause, in which other sessions
    proceed. ``tries`` yields pairs (wait, pause) in seconds, without end.

    Raises QueueBusy if the next try would start more than ``seconds`` after the call.
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
    """Cancel autovacuum on some tables, and keep it off until the end of the transaction.

    PostgreSQL cancels an autovacuum after a session has waited for it for ``deadlock_timeout``,
    which is longer than :func:`briefly` waits. This function therefore waits longer, for a lock
    that blocks neither reads nor writes.
    """
    cursor.execute(
        "SELECT 2 * current_setting('deadlock_timeout')::interval, "
        "ARRAY(SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL)",
        [list(tables)],
    )
    long_enough, there = cursor.fetchone()
    if there:  # a queue can be dropped even if its tables are missing
        timeout = milliseconds(long_enough.total_seconds())
        with settings_for(cursor, lock_timeout=timeout, statement_timeout="0"):
            cursor.execute(f"LOCK TABLE {', '.join(there)} IN SHARE UPDATE EXCLUSIVE MODE")


@contextmanager
def settings_for(cursor: Any, **settings: str) -> Iterator[None]:
    """Change server settings for a block within a transaction.

    After an error, the rollback restores them.
    """
    names = ", ".join("current_setting(%s)" for _ in settings)
    cursor.execute(f"SELECT {names}", list(settings))
    usual = dict(zip(settings, cursor.fetchone(), strict=True))
    set_locally(cursor, **settings)
    yield
    set_locally(cursor, **usual)


@contextmanager
def read_committed(cursor: Any, is_alone: bool) -> Iterator[None]:
    """Begin a transaction of its own, if it is alone, at READ COMMITTED."""
    if is_alone:
        cursor.execute(READ_COMMITTED)
    yield


def set_locally(cursor: Any, **settings: str) -> None:
    """Change server settings until the end of the transaction."""
    for name, value in settings.items():
        cursor.execute("SELECT set_config(%s, %s, true)", [name, value])


def milliseconds(seconds: float) -> str:
    """Return a duration as server settings write it.

    >>> milliseconds(0.05)
    '50ms'
    """
    return f"{max(1, int(seconds * 1000))}ms"
