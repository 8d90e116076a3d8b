"""Procrastinate's ``lock``: one job at a time of a key, in order.

https://procrastinate.readthedocs.io/en/stable/howto/advanced/locks.html. A lock has no number, so
its cap is 1. ``queueing_lock`` refuses a second waiting job: it limits no handlers. The worker's
``concurrency`` is of one process, and a rate is not in the documentation.

The end of a job wakes no worker for the next one of its lock, so the interval between polls, 5 s by
default, is short here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import runs
from benchmarks.peers import limited, procrastinate
from benchmarks.peers.procrastinate import CHUNK, app

#: Seconds.
INTERVAL = 0.05


@app.task(queue="limits")
def handle(key: str, number: int, seconds: float) -> None:
    runs.handle(key, number, seconds)


class Worker(limited.Worker, procrastinate.Worker):
    limits = {"cap": "of a key: `configure(lock=key)`, at most one at a time"}
    none = {"rate": "its documentation has no limit of a rate"}
    cap = 1
    documentation = "https://procrastinate.readthedocs.io/en/stable/howto/advanced/locks.html"

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        return [*super().command("limits", concurrency), f"--fetch-job-polling-interval={INTERVAL}"]

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        [key] = {message["key"] for message in messages}
        for start in range(0, len(messages), CHUNK):
            handle.configure(lock=key).batch_defer(*messages[start : start + CHUNK])

    def remaining(self, mode: str) -> int:
        return super().remaining("limits")
