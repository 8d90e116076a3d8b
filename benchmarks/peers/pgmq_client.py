"""PGMQ's Python client, in the loop that its documentation leaves to users.

The default is one message at a time, as in the quick start of https://pgmq.github.io/pgmq-py/,
found with ``read_with_poll``. Tuned, it uses "batch operations for high throughput" (the same
page), and the listener of https://pgmq.github.io/pgmq-py/notifications/ instead of polling, without
a throttle. The loop runs one handler at a time: more concurrency takes more processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from pgmq import PGMQueue
from pgmq.notify_listener import SyncNotificationListener
from psycopg.conninfo import make_conninfo

from benchmarks import database, peers
from benchmarks.notes import note_delay
from benchmarks.peers.pgmq import install

BATCH = 100
CHUNK = 10_000
HANDLERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "drain": lambda body: None,
    "wait": lambda body: time.sleep(0.01),
    "latency": lambda body: note_delay(body["sent"]),
}


def connect() -> PGMQueue:
    where = database.parameters()
    given = {name: value for name, value in where.items() if value != ""}
    return PGMQueue(conn_string=make_conninfo(**given), init_extension=False)


def main(mode: str, *, is_tuned: bool) -> None:
    """The consumer process."""
    queue, handle = connect(), HANDLERS[mode]
    if not is_tuned:
        while True:
            for message in queue.read_with_poll(mode):
                handle(message.message)
                queue.archive(mode, message.msg_id)

    def drain(_: object = None) -> None:
        while messages := queue.read_batch(mode, batch_size=BATCH):
            for message in messages:
                handle(message.message)
            queue.archive_batch(mode, [message.msg_id for message in messages])

    drain()
    while True:
        SyncNotificationListener(queue).listen(mode, drain)


class Worker(peers.Worker):
    default = "a loop of `read_with_poll` and `archive`, one message at a time"
    tuned = f"`read_batch` and `archive_batch` of {BATCH}, woken by its listener"
    documentation = "https://pgmq.github.io/pgmq-py/notifications/"
    has_concurrency = False

    def install(self) -> None:
        install()
        for mode in HANDLERS:
            self.queue.create_queue(mode)

    @cached_property
    def queue(self) -> PGMQueue:
        return connect()

    def tune(self, mode: str) -> None:
        if self.is_tuned:
            self.queue.enable_notify(mode, throttle_interval_ms=0)
        else:
            self.queue.disable_notify(mode)

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        self.table = f"pgmq.q_{mode}"
        return [sys.executable, "-m", __name__, mode, "tuned" if self.is_tuned else "default"]

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        self.queue.send(mode, body)

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        for start in range(0, len(bodies), CHUNK):
            self.queue.send_batch(mode, bodies[start : start + CHUNK])

    def remaining(self, mode: str) -> int:
        return self.count(f"SELECT count(*) FROM pgmq.q_{mode}")

    def clear(self, mode: str) -> None:
        self.connection.execute("SELECT pgmq.drop_queue(%s::text)", [mode])
        self.queue.create_queue(mode)

    def close(self) -> None:
        super().close()
        self.queue.close()


if __name__ == "__main__":
    main(sys.argv[1], is_tuned=sys.argv[2] == "tuned")
