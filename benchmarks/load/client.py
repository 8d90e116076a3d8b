"""The process of all connections of a cell, for systems whose client is in Python.

    python -m benchmarks.load.client PLAN

The plan is a JSON file (benchmarks/load/measure.py). The process opens and warms up all
connections, prints "ready", reads the time of the start from its input, and follows each
connection's schedule. Then it writes the turns to the plan's ``turns``: the scheduled moment, the
start and the end, in seconds after the common start, and the number of reads that found nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
import uuid
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.load.systems import QUEUE
from benchmarks.peers import QUEUES

#: Turns before the start, on each connection: psycopg prepares a statement that has run five times.
WARM_UP = 6
#: The pause after a read that found nothing.
PAUSE = 0.001


def bodies(plan: dict[str, Any], place: int) -> Any:
    """Bodies without end; each connection begins at another one."""
    found = json.loads(Path(plan["bodies"]).read_text())
    return islice(cycle(found), place % len(found), None)


def wait_for_start() -> float:
    print("ready", flush=True)
    return float(sys.stdin.readline())


class Threads:
    """A thread for each connection."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.turns: list[list[list[float]]] = [[] for _ in plan["due"]]
        self.failures: list[BaseException] = []
        self.started = threading.Event()
        self.start = 0.0

    def run(self) -> None:
        # A thread whose answer has come waits for the interpreter at most this long.
        sys.setswitchinterval(0.001)
        threads = [
            threading.Thread(target=self.connection, args=(place,), daemon=True)
            for place in range(len(self.turns))
        ]
        self.ready = threading.Barrier(len(threads) + 1)
        for thread in threads:
            thread.start()
        try:
            self.ready.wait()
        except threading.BrokenBarrierError:
            raise self.failures[0] from None
        self.start = wait_for_start()
        self.started.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def connection(self, place: int) -> None:
        try:
            module = importlib.import_module(f"benchmarks.peers.{QUEUES[self.plan['system']][0]}")
            queues, source = module.Queues(), bodies(self.plan, place)

            def turn() -> int:
                queues.send(QUEUE, next(source))
                empty = 0
                while not queues.cycle(QUEUE, 1):
                    empty += 1
                    time.sleep(PAUSE)
                return empty

            for _ in range(WARM_UP):
                turn()
            self.ready.wait()
            self.started.wait()
            end = self.start + self.plan["seconds"]
            for due in self.plan["due"][place]:
                if (wait := self.start + due - time.monotonic()) > 0:
                    time.sleep(wait)
                if (began := time.monotonic()) > end:
                    break
                empty = turn()
                ended = time.monotonic()
                self.turns[place].append([due, began - self.start, ended - self.start, empty])
        except BaseException as error:
            self.failures.append(error)
            self.ready.abort()


class PgQueuer:
    """A task of one event loop for each connection."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.turns: list[list[list[float]]] = [[] for _ in plan["due"]]

    def run(self) -> None:
        import uvloop

        uvloop.run(self.main())

    async def main(self) -> None:
        places = range(len(self.turns))
        turns = [await self.connect(place) for place in places]
        await asyncio.gather(*(self.warm_up(turn) for turn in turns))
        start = wait_for_start()
        await asyncio.gather(*(self.follow(turns[place], start, place) for place in places))

    async def connect(self, place: int) -> Any:
        from pgqueuer.queries import EntrypointExecutionParameter, Queries

        from benchmarks.peers.pgqueuer import connect

        queries = Queries.from_asyncpg_connection(await connect())
        source = bodies(self.plan, place)
        entrypoints: Any = {QUEUE: EntrypointExecutionParameter(0)}
        manager: Any = uuid.uuid4()
        timeout = timedelta(seconds=30)

        async def turn() -> int:
            await queries.enqueue(QUEUE, json.dumps(next(source)).encode())
            empty = 0
            while not (jobs := await queries.dequeue(1, entrypoints, manager, None, timeout)):
                empty += 1
                await asyncio.sleep(PAUSE)
            for job in jobs:
                json.loads(job.payload or b"null")
            await queries.log_jobs([(job, "successful", None) for job in jobs])
            return empty

        return turn

    async def warm_up(self, turn: Any) -> None:
        for _ in range(WARM_UP):
            await turn()

    async def follow(self, turn: Any, start: float, place: int) -> None:
        for due in self.plan["due"][place]:
            if (wait := start + due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if (began := time.monotonic() - start) > self.plan["seconds"]:
                break
            empty = await turn()
            self.turns[place].append([due, began, time.monotonic() - start, empty])


def main(path: str) -> None:
    import django

    django.setup()
    plan = json.loads(Path(path).read_text())
    driver: Any = (PgQueuer if plan["system"] == "PgQueuer" else Threads)(plan)
    driver.run()
    Path(plan["turns"]).write_text(json.dumps(driver.turns))


if __name__ == "__main__":
    main(sys.argv[1])
