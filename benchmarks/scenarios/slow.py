"""A consumer whose log handler, or receiver of a signal, takes 5 ms for each message."""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import notes
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import running
from django_pgqueue.models import Message

#: The longest time in seconds until the consumer is stopped, and of the stop.
LIMIT, STOP = 120, 60

RUNS, MEMORY, END = "runs/message", "MB grown", "s to stop"


def goals(of: str) -> tuple[Goal, ...]:
    return (
        Goal(of, at_most=1.0, unit=RUNS),
        Goal(of, at_most=50.0, unit=MEMORY),
        # The graceful timeout is 5 s.
        Goal(of, at_most=7.0, unit=END),
    )


@scenario(
    "Leases of 2 s, 5 ms for each log line or signal; stopped after 10,000 messages (quick: 1,500)",
    baseline=None,
    goals=(*goals("log lines"), *goals("a receiver")),
    rounds=1,
)
def slow_logs(bench: Any) -> dict[str, Measure]:
    worker = bench.workers("ours")["ours"]
    count = bench.amount(1_500, 10_000)
    modes = {"log lines": "slow-logs", "a receiver": "slow-receiver"}
    for mode in modes.values():
        Message.objects.create_queue(mode)
    return {label: partial(run, worker, mode, count) for label, mode in modes.items()}


def run(worker: Any, mode: str, count: int) -> dict[str, float]:
    """Handle ``count`` of twice as many messages, then stop."""
    worker.clear(mode)
    worker.fill(2 * count, mode)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "notes"
        environment = {notes.VARIABLE: str(path), "BENCHMARK_SLOW": mode}
        with running(worker, mode, **environment) as found:
            [process] = found.processes
            found.wait_for(lambda: path.exists())
            grown = psutil.Process(process.pid).memory_info
            began, before, most = time.monotonic(), grown().rss, 0
            while worker.remaining(mode) > count and time.monotonic() - began < LIMIT:
                most = max(most, grown().rss)
                time.sleep(0.5)
            done, seconds = 2 * count - worker.remaining(mode), time.monotonic() - began
            stopping = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(STOP)
            stopped = time.monotonic() - stopping
        runs = Counter(pk for _, pk in notes.read(path))
    return {
        "messages/s": done / seconds,
        RUNS: sum(runs.values()) / len(runs),
        MEMORY: max(most - before, 0) / 1e6,
        END: stopped,
    }
