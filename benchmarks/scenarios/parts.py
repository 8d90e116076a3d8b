"""The time of each layer for one message: the same work with one more layer each time.

Without fsync, which would hide the rest; the last line includes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from django.db import connection

from benchmarks import database
from benchmarks.peers import bare, ours, ours_bare
from benchmarks.scenarios import Measure, scenario

NO_FSYNC = "SET synchronous_commit = off"


def bare_queues(cursor_factory: Any) -> ours_bare.Queues:
    """psycopg's own cursor prepares repeated statements; Django's binds values on the client."""
    queues = ours_bare.Queues(cursor_factory)
    queues.connection.execute(NO_FSYNC)
    return queues


def microseconds(step: Callable[[], int], repeats: int) -> float:
    """Microseconds of this process per message."""
    count, started = 0, time.perf_counter()
    for _ in range(repeats):
        count += step()
    return (time.perf_counter() - started) / count * 1e6


def without_fsync(step: Callable[[], int], repeats: int) -> float:
    """Microseconds per message, for steps on Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute(NO_FSYNC)
        try:
            return microseconds(step, repeats)
        finally:
            cursor.execute("RESET synchronous_commit")


def select_one(cursor: Any) -> int:
    cursor.execute("SELECT 1")
    return len(cursor.fetchall())


def select_one_by_django() -> int:
    with connection.cursor() as cursor:
        return select_one(cursor)


@scenario("Send one: a layer more each time", unit="µs a message", baseline="ours, fsync")
def parts_send(bench: Any) -> dict[str, Measure]:
    repeats = bench.amount(1000, 3000)
    queues, name = bench.queue("ours")
    body = bench.payload.bodies[0]
    bare.create()
    plain = database.connect().cursor()
    plain.execute(NO_FSYNC)
    prepared, bound = map(bare_queues, (psycopg.Cursor, psycopg.ClientCursor))

    def insert() -> int:
        plain.execute(bare.INSERT, [bare.text(body)])
        return len(plain.fetchall())

    steps: dict[str, Callable[[], int]] = {
        "SELECT 1": lambda: select_one(plain),
        "insert into a plain table": insert,
        "send, prepared": lambda: prepared.send(name, body),
        "send, bound in the client": lambda: bound.send(name, body),
    }
    return {
        **{label: partial(microseconds, step, repeats) for label, step in steps.items()},
        "SELECT 1 by Django": lambda: without_fsync(select_one_by_django, repeats),
        "ours": lambda: without_fsync(lambda: queues.send(name, body), repeats),
        "ours, fsync": lambda: microseconds(lambda: queues.send(name, body), repeats),
    }


@scenario(
    "Read 100 and archive them: a layer more each time", unit="µs a message", baseline="ours, fsync"
)
def parts_read(bench: Any) -> dict[str, Measure]:
    repeats = bench.amount(60, 200)
    queues, name = bench.queue("ours")
    prepared, bound = map(bare_queues, (psycopg.Cursor, psycopg.ClientCursor))
    limit = bare.Queues()
    limit.cursor.execute(NO_FSYNC)

    def measured(measure: Any, cycling: ours.Queues) -> float:
        queues.fill(name, bench.payload.bodies, repeats * 100)
        return measure(lambda: cycling.cycle(name, 100), repeats)

    def deleted() -> float:
        bare.copy_in(bench.payload.take(repeats * 100))
        return microseconds(lambda: limit.cycle(name, 100), repeats)

    return {
        "delete from a plain table": deleted,
        "read and archive, prepared": partial(measured, microseconds, prepared),
        "read and archive, bound in the client": partial(measured, microseconds, bound),
        "ours": partial(measured, without_fsync, queues),
        "ours, fsync": partial(measured, microseconds, queues),
    }
