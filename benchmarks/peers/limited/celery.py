"""Celery's ``rate_limit``, of a task, on Redis: a key is a task with a queue of its own.

"This is a per worker instance rate limit, and not a global rate limit", says
https://docs.celeryq.dev/en/stable/userguide/tasks.html#Task.rate_limit; so each of the workers gets
its share of the rate. There is no limit of what runs at once but a worker's ``--concurrency``.

A limited task waits in the worker that fetched it, with a timer. By its source, not by measurement,
the worker's loop sleeps for a second when ten timers are due at once (kombu 5.7,
``Hub.fire_timers``). A worker that fetches few tasks in advance has fewer timers:
https://docs.celeryq.dev/en/stable/userguide/optimizing.html#prefetch-limits.

A temporary Redis is the broker. Its data is not saved, and results are ignored.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import redis
from celery import Celery

from benchmarks import runs
from benchmarks.peers import limited
from benchmarks.peers.limited import BUSY, NEWCOMER, RATE

app = Celery("benchmarks", broker=os.environ.get("BENCHMARK_BROKER"))
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 1
limit = os.environ.get("BENCHMARK_RATE_LIMIT")


@app.task(name=BUSY, rate_limit=limit)
def busy(**run: Any) -> None:
    runs.handle(**run)


@app.task(name=NEWCOMER, rate_limit=limit)
def newcomer(**run: Any) -> None:
    runs.handle(**run)


def version() -> str:
    """The version of the Redis server."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    return said.partition("v=")[2].partition(" ")[0]


class Worker(limited.Worker):
    limits = {"rate": f'of a task: `rate_limit="{RATE // 4}/s"` in each of 4 workers'}
    none = {"cap": "only of one worker, by `--concurrency`"}
    documentation = "https://docs.celeryq.dev/en/stable/userguide/tasks.html#Task.rate_limit"

    def __init__(self, *, is_tuned: bool = False) -> None:
        super().__init__(is_tuned=is_tuned)
        self.closing = ExitStack()
        folder = self.closing.enter_context(tempfile.TemporaryDirectory(prefix="redis-"))
        self.socket = f"{folder}/socket"

    def install(self) -> None:
        unsaved = ["--save", "", "--appendonly", "no", "--dir", os.path.dirname(self.socket)]
        command = ["redis-server", "--port", "0", "--unixsocket", self.socket, *unsaved]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        self.closing.callback(server.wait)
        self.closing.callback(server.terminate)
        self.redis = redis.Redis(unix_socket_path=self.socket)
        until = time.monotonic() + 10
        while not os.path.exists(self.socket):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        worker = ["worker", "--queues", f"{BUSY},{NEWCOMER}", "--loglevel", "ERROR"]
        threads = ["--pool", "threads", "--concurrency", str(concurrency)]
        return [sys.executable, "-m", __name__, *worker, *threads]

    def environment(self) -> dict[str, str]:
        rate = f"{RATE // self.processes}/s"
        return {"BENCHMARK_BROKER": self.broker, "BENCHMARK_RATE_LIMIT": rate}

    @property
    def broker(self) -> str:
        return f"redis+socket://{self.socket}"

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        with (
            app.connection_for_write(self.broker) as connection,
            app.amqp.Producer(connection) as producer,
        ):
            for message in messages:
                app.send_task(
                    message["key"], kwargs=message, queue=message["key"], producer=producer
                )

    def remaining(self, mode: str) -> int:
        waiting = sum(self.redis.llen(key) for key in (BUSY, NEWCOMER))
        return waiting + self.redis.hlen("unacked")

    def clear(self, mode: str) -> None:
        self.redis.flushall()

    def close(self) -> None:
        super().close()
        self.closing.close()


if __name__ == "__main__":
    # Workers need different names.
    app.worker_main([*sys.argv[1:], "--hostname", f"{os.getpid()}@%h"])
