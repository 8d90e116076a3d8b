"""PgQueuer: its asyncpg driver and ``PgQueuer.run`` on uvloop, which is what its command line does.

The command line itself fails while setting up its log, with the typer that 1.6.0 gets today.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from benchmarks import database
from benchmarks.notes import note

#: For rate and for delay each what serves it best here; the default is 10.
BATCHES = {"drain": 1000, "latency": 10}
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


async def main(mode: str) -> None:
    """The consumer process."""
    pgq = PgQueuer.from_asyncpg_connection(await connect())

    @pgq.entrypoint("drain")
    async def nothing(job: Any) -> None:
        pass

    @pgq.entrypoint("latency")
    async def note_the_delay(job: Any) -> None:
        note(json.loads(job.payload)["sent"])

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
    await pgq.run(batch_size=BATCHES[mode])


class Worker:
    most = 20_000

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connection = self.loop.run_until_complete(connect())
        self.queries = Queries.from_asyncpg_connection(self.connection)

    def install(self) -> None:
        if not self.loop.run_until_complete(self.queries.schema_is_installed()):
            self.loop.run_until_complete(self.queries.install())

    def command(self, mode: str) -> list[str]:
        return [sys.executable, "-m", __name__, mode]

    def fill(self, count: int, mode: str) -> None:
        payload = json.dumps({"x": "y" * 192}).encode()
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            self.loop.run_until_complete(
                self.queries.enqueue([mode] * size, [payload] * size, [0] * size)
            )

    def send(self, body: dict[str, Any], mode: str) -> None:
        self.loop.run_until_complete(self.queries.enqueue(mode, json.dumps(body).encode()))

    def remaining(self, mode: str) -> int:
        query = "SELECT count(*) FROM pgqueuer WHERE entrypoint = $1"
        return self.loop.run_until_complete(self.connection.fetchval(query, mode))

    def clear(self, mode: str) -> None:
        self.loop.run_until_complete(self.queries.clear_queue(mode))

    def close(self) -> None:
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1]))
