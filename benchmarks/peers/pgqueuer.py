"""PgQueuer: its asyncpg driver and ``PgQueuer.run`` on uvloop, as its command line does.

https://janbjorge.github.io/pgqueuer/guides/performance-tuning/ advises: a larger ``batch_size``
when jobs are short (the default is 10; of 25, 100 and 1,000 the last is fastest here),
``pgq autovac`` after the installation, a single connection for the worker, the default durability
where nothing may be lost. asyncpg is its faster driver:
https://janbjorge.github.io/pgqueuer/comparisons/benchmarks/

The command line itself fails while setting up its log, with the typer that 1.6.0 gets today.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from benchmarks import database, peers
from benchmarks.notes import note_delay

BATCH = 1000
CHUNK = 5000


def connect() -> Any:
    where = database.parameters()
    return asyncpg.connect(
        host=where["host"],
        port=where["port"],
        user=where["user"],
        password=where.get("password") or None,
        database=where["dbname"],
    )


async def main(mode: str, options: dict[str, int]) -> None:
    """The consumer process."""

    async def nothing(job: Any) -> None:
        pass

    async def wait_10ms(job: Any) -> None:
        await asyncio.sleep(0.01)

    async def note_the_delay(job: Any) -> None:
        note_delay(json.loads(job.payload)["sent"])

    handlers = {"drain": nothing, "wait": wait_10ms, "latency": note_the_delay}
    await consume({mode: handlers[mode]}, options)


async def consume(
    handlers: dict[str, Callable[[Any], Any]], options: dict[str, int], **limits: int
) -> None:
    """Run each entrypoint's handler until SIGTERM."""
    pgq = PgQueuer.from_asyncpg_connection(await connect())
    for entrypoint, handler in handlers.items():
        pgq.entrypoint(entrypoint, **limits)(handler)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    await pgq.run(**options)


class Worker(peers.Worker):
    default = "`PgQueuer.run` with asyncpg on uvloop: `batch_size=10`"
    tuned = f"`batch_size={BATCH}`, `pgq autovac`"
    documentation = "https://janbjorge.github.io/pgqueuer/guides/performance-tuning/"
    table = "pgqueuer"

    def __init__(self, *, is_tuned: bool = False) -> None:
        super().__init__(is_tuned=is_tuned)
        self.loop = asyncio.new_event_loop()
        self.asyncpg = self.run(connect())
        self.queries = Queries.from_asyncpg_connection(self.asyncpg)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def install(self) -> None:
        if not self.run(self.queries.schema_is_installed()):
            self.run(self.queries.install())

    def tune(self, mode: str) -> None:
        made, undone = (
            self.queries.optimize_autovacuum,
            self.queries.optimize_autovacuum_rollback,
        )
        self.run(made() if self.is_tuned else undone())

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        options = {"batch_size": BATCH} if self.is_tuned else {}
        if concurrency is not None:
            # PgQueuer requires a concurrency of at least twice the batch: two, if one is requested.
            batch = max(concurrency // 2, 1)
            options = {"batch_size": batch, "max_concurrent_tasks": 2 * batch}
        return [sys.executable, "-m", type(self).__module__, mode, json.dumps(options)]

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        self.run(self.queries.enqueue(mode, json.dumps(body).encode()))

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        for start in range(0, len(bodies), CHUNK):
            payloads = [json.dumps(body).encode() for body in bodies[start : start + CHUNK]]
            size = len(payloads)
            self.run(self.queries.enqueue([mode] * size, payloads, [0] * size))

    def remaining(self, mode: str) -> int:
        return self.count("SELECT count(*) FROM pgqueuer WHERE entrypoint = %s", mode)

    def clear(self, mode: str) -> None:
        self.connection.execute("TRUNCATE pgqueuer, pgqueuer_log")

    def close(self) -> None:
        super().close()
        self.run(self.asyncpg.close())
        self.loop.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1], json.loads(sys.argv[2])))
