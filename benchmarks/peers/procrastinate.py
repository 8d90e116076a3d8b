"""Procrastinate: its psycopg connector and its command line.

"By default, each worker only takes one job at a time"; for throughput ``--concurrency=30`` is the
example of https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html, and
with short jobs the pool should hold "as many connections as your concurrency (plus one)":
https://procrastinate.readthedocs.io/en/stable/discussions.html#mind-the-size-of-your-postgresql-pool.
Many jobs go by ``batch_defer``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import procrastinate

from benchmarks import database, peers
from benchmarks.notes import note_delay

CONCURRENCY = 30
CHUNK = 1000

where = database.parameters() if "BENCHMARK_DATABASE" in os.environ else {}
size = int(os.environ.get("BENCHMARK_POOL", 0))
# psycopg's default minimum is four.
pool = {"min_size": min(size, 4), "max_size": size} if size else {}
app = procrastinate.App(connector=procrastinate.PsycopgConnector(kwargs=where, **pool))


@app.task(queue="drain")
async def nothing(x: str) -> None:
    """A handler that does nothing."""


@app.task(queue="wait")
async def wait_10ms(x: str) -> None:
    await asyncio.sleep(0.01)


@app.task(queue="latency")
async def note_the_delay(sent: float) -> None:
    note_delay(sent)


TASKS = {"drain": nothing, "wait": wait_10ms, "latency": note_the_delay}


class Worker(peers.Worker):
    default = "`procrastinate worker`: one job at a time"
    tuned = f"`--concurrency={CONCURRENCY}`, a pool of one connection more"
    documentation = (
        "https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html"
    )
    table = "procrastinate_jobs"

    def __init__(self, *, is_tuned: bool = False) -> None:
        super().__init__(is_tuned=is_tuned)
        self.concurrency = CONCURRENCY if is_tuned else None
        app.open()

    def install(self) -> None:
        if not self.count("SELECT count(to_regclass('procrastinate_jobs'))"):
            app.schema_manager.apply_schema()

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        self.concurrency = concurrency or (CONCURRENCY if self.is_tuned else None)
        tuning = [f"--concurrency={self.concurrency}"] if self.concurrency else []
        module = f"--app={type(self).__module__}.app"
        return [sys.executable, "-m", "procrastinate", module, "worker", "--queues", mode, *tuning]

    def environment(self) -> dict[str, str]:
        return {"BENCHMARK_POOL": str(self.concurrency + 1)} if self.concurrency else {}

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        TASKS[mode].defer(**body)

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        for start in range(0, len(bodies), CHUNK):
            TASKS[mode].batch_defer(*bodies[start : start + CHUNK])

    def remaining(self, mode: str) -> int:
        return self.count(
            "SELECT count(*) FROM procrastinate_jobs"
            " WHERE queue_name = %s AND status IN ('todo', 'doing')",
            mode,
        )

    def clear(self, mode: str) -> None:
        self.connection.execute("TRUNCATE procrastinate_jobs CASCADE")

    def close(self) -> None:
        super().close()
        app.close()
