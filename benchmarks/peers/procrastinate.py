"""Procrastinate: its psycopg connector and its command line."""

from __future__ import annotations

import os
import sys
from typing import Any

import procrastinate

from benchmarks import database
from benchmarks.notes import note

CHUNK = 1000

where = database.parameters() if "BENCHMARK_DATABASE" in os.environ else {}
app = procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs=where))


@app.task(queue="drain")
async def nothing(x: str) -> None:
    """A handler that does nothing."""


@app.task(queue="latency")
async def note_the_delay(sent: float) -> None:
    note(sent)


TASKS = {"drain": nothing, "latency": note_the_delay}


class Worker:
    most = 5_000

    def __init__(self) -> None:
        self.connection = database.connect()
        app.open()

    def install(self) -> None:
        found = self.connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
        if found == (None,):
            app.schema_manager.apply_schema()

    def command(self, mode: str) -> list[str]:
        module = f"--app={__name__}.app"
        return [sys.executable, "-m", "procrastinate", module, "worker", "--queues", mode]

    def fill(self, count: int, mode: str) -> None:
        for start in range(0, count, CHUNK):
            rows = [{"x": "y" * 192}] * min(CHUNK, count - start)
            TASKS[mode].batch_defer(*rows)

    def send(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].defer(**body)

    def remaining(self, mode: str) -> int:
        return self.connection.execute(
            "SELECT count(*) FROM procrastinate_jobs"
            " WHERE queue_name = %s AND status IN ('todo', 'doing')",
            [mode],
        ).fetchone()[0]

    def clear(self, mode: str) -> None:
        self.connection.execute("DELETE FROM procrastinate_jobs WHERE queue_name = %s", [mode])

    def close(self) -> None:
        self.connection.close()
        app.close()
