"""When handlers ran, in a table, by the server's clock.

A run's row has a start after the handler's, and an end before the handler's. So overlapping rows
are overlapping handlers, and the work between the two moments cannot overlap unnoticed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks import database

TABLE = """
    CREATE UNLOGGED TABLE IF NOT EXISTS bench_run (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL,
        number integer NOT NULL,
        started timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz
    )
"""
START = "INSERT INTO bench_run (key, number) VALUES (%s, %s) RETURNING id"
END = "UPDATE bench_run SET ended = clock_timestamp() WHERE id = %s"
MICROSECONDS = "(extract(epoch FROM {}) * 1000000)::bigint"

_sessions = threading.local()


class Run(NamedTuple):
    """One run of a handler, in microseconds. A run without an end was killed, or goes on."""

    key: str
    number: int
    started: int
    ended: int | None


def handle(key: str, number: int, seconds: float) -> None:
    """The handler of every contestant: waits for ``seconds``, and records when."""
    if not hasattr(_sessions, "connection"):
        _sessions.connection = database.connect()
    connection = _sessions.connection
    [pk] = connection.execute(START, [key, number]).fetchone()
    time.sleep(seconds)
    connection.execute(END, [pk])


def messages(key: str, numbers: Iterable[int], seconds: float) -> list[dict[str, Any]]:
    """The arguments of :func:`handle`, for a message each."""
    return [{"key": key, "number": number, "seconds": seconds} for number in numbers]


def clear(connection: Any) -> None:
    """Create the table, or empty it."""
    connection.execute(TABLE)
    connection.execute("TRUNCATE bench_run")


def read(connection: Any) -> list[Run]:
    """All runs in the order of their starts."""
    moments = ", ".join(map(MICROSECONDS.format, ("started", "ended")))
    found = connection.execute(f"SELECT key, number, {moments} FROM bench_run ORDER BY started, id")
    return [Run(*row) for row in found]


def has_started(connection: Any, key: str, number: int = 0) -> bool:
    """Whether a run of this key began, of this number or a higher one."""
    query = "SELECT EXISTS (SELECT FROM bench_run WHERE key = %s AND number >= %s)"
    return bool(connection.execute(query, [key, number]).fetchone()[0])


def now(connection: Any) -> int:
    """The server's clock in microseconds."""
    return int(
        connection.execute(f"SELECT {MICROSECONDS.format('clock_timestamp()')}").fetchone()[0]
    )
