"""The time of each layer for one message: the same work with one more layer each time.

Without fsync, which would hide the rest; the last line includes it. The last scenario compares the
statement of a read with a PL/pgSQL function that contains it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection

from benchmarks import database
from benchmarks.peers import bare, ours, ours_bare
from benchmarks.scenarios import Measure, scenario
from django_pgqueue.bare import BareRunner
from django_pgqueue.engine.runner import Rows

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


# The parameters and columns of read_ready.sql.
PARAMETERS = {
    "after": "bigint", "due_after": "float8", "process_id": "integer",
    "qty": "bigint", "rank": "smallint", "rechecked": "bigint", "vt": "interval",
}  # fmt: skip
COLUMNS = (
    "note text, id bigint, read_ct integer, read_at bigint, body jsonb, headers jsonb, "
    "enqueued_at timestamptz, priority smallint, group_key text, attempts integer, vt bigint, "
    "first_read_at bigint, expires_at bigint, scheduled_at timestamptz, turn bigint"
)


class FunctionRunner(BareRunner):
    """Reads behind the position by a function of the server, which keeps its plan."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self.calls: dict[str, str] = {}

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        if params and "after" in params:
            text = self.calls.get(text) or self.make(text)
        return super().run(text, params)

    def make(self, text: str) -> str:
        """Make a temporary function of a statement. Returns the statement that calls it."""
        name = f"pg_temp.read_{len(self.calls)}"
        body = re.sub(r"%\((\w+)\)s", r"p_\1", text)
        declared = ", ".join(f"p_{each} {kind}" for each, kind in PARAMETERS.items())
        self.session.execute(
            f"CREATE FUNCTION {name}({declared}) RETURNS TABLE ({COLUMNS}) LANGUAGE plpgsql "
            f"AS $$\n#variable_conflict use_column\nBEGIN RETURN QUERY {body}; END $$"
        )
        given = ", ".join(f"%({each})s::{kind}" for each, kind in PARAMETERS.items())
        self.calls[text] = f"SELECT * FROM {name}({given})"
        return self.calls[text]


def processor_time(queues: ours_bare.Queues, step: Callable[[], int], repeats: int) -> list[float]:
    """Microseconds of the server's and of this process's processor time per message."""
    stat = Path(f"/proc/{queues.connection.info.backend_pid}/schedstat")
    count, server, client = 0, int(stat.read_text().split()[0]), time.process_time()
    for _ in range(repeats):
        count += step()
    server = int(stat.read_text().split()[0]) - server
    return [server / 1e3 / count, (time.process_time() - client) * 1e6 / count]


@scenario(
    "Read and archive: the processor time of a statement, and of a function that contains it",
    unit="µs a message, server, 1",
    baseline="a statement",
)
def parts_function(bench: Any) -> dict[str, Measure]:
    repeats = {1: bench.amount(500, 5000), 100: bench.amount(50, 200)}
    owner, name = bench.queue("ours")

    def measured(is_function: bool) -> dict[str, float]:
        queues = bare_queues(psycopg.Cursor)
        if is_function:
            queues.opened[name] = replace(
                queues.open(name), runner=FunctionRunner(queues.connection)
            )
        found: dict[str, float] = {}
        for qty, times in repeats.items():
            owner.fill(name, bench.payload.bodies, (times + 20) * qty)
            for _ in range(20):  # until the plans are kept
                queues.cycle(name, qty)
            took = processor_time(queues, partial(queues.cycle, name, qty), times)
            for side, each in zip(("server", "client"), took, strict=True):
                found[f"µs a message, {side}, {qty}"] = each
        return found

    return {"a statement": partial(measured, False), "a function": partial(measured, True)}
