"""A cap and a rate beside the peers: whether they hold, what they reach, whom they delay.

Four worker processes with four handlers each, or as the contestant's documentation says. The
handlers record in a table when they ran.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import figures, peers, runs
from benchmarks.bounds import SECOND, over_cap, over_rate
from benchmarks.peers.limited import BUSY, CAP, NEWCOMER, RATE, Worker
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import running

#: Blocked messages while a newcomer waits, and how often one is sent.
BLOCKED, NEWCOMERS = 2_000, 5
#: Seconds of a capped handler, and the longest wait of a newcomer.
HANDLER, PATIENCE = 0.02, 10
WAIT = "starts before a newcomer"


@scenario(
    f"A cap of {CAP} and a rate of {RATE}/s, and a newcomer behind {BLOCKED:,} blocked messages",
    baseline=None,
    rounds=1,
    goals=(
        Goal("ours", at_most=0, unit="starts over the cap"),
        Goal("ours", at_most=0, unit="starts over the rate"),
        Goal("ours", at_least=0.95, unit="share of the rate"),
    ),
)
def limits(bench: Any) -> dict[str, Measure]:
    workers = bench.limited(*peers.LIMITED)
    bench.made_of = (
        f"Handlers take {HANDLER * 1000:g} ms under the cap, and no time under the rate. "
        f"The worst of {NEWCOMERS} newcomers; inf: one did not start within {PATIENCE} s."
        f"\n\n{settings(workers)}"
    )
    return {label: partial(measured, bench, worker) for label, worker in workers.items()}


def settings(workers: dict[str, Worker]) -> str:
    """How each contestant is limited, or why it is not."""
    head = ["", "processes x handlers", "a cap", "a rate", "documentation"]
    rows = []
    for label, worker in workers.items():
        how = {**{limit: f"none: {why}" for limit, why in worker.none.items()}, **worker.limits}
        size = f"{worker.processes} x {worker.threads}"
        rows.append([label, size, how["cap"], how["rate"], worker.documentation])
    return figures.table(head, rows, text=len(head))


def measured(bench: Any, worker: Worker) -> dict[str, float]:
    """The figures of the limits that a worker has. Newcomers come while the first one blocks."""
    found: dict[str, float] = {}
    for limit in worker.limits:
        is_cap = limit == "cap"
        seconds = bench.amount(2, 5) if is_cap else bench.amount(3, 10)
        handler, fastest = (HANDLER, CAP / HANDLER) if is_cap else (0, RATE)
        with working(bench, worker, limit, BLOCKED + round(2 * fastest * seconds), handler):
            time.sleep(seconds)
            if WAIT not in found:
                found[WAIT] = max(newcomers(worker, limit))
        busy = [run for run in runs.read(worker.connection) if run.key == BUSY]
        found |= capped(busy, worker.cap, seconds) if is_cap else rated(busy, RATE, seconds)
    return found


@contextmanager
def working(bench: Any, worker: Worker, mode: str, count: int, handler: float) -> Iterator[None]:
    """Run the worker's processes on a backlog of one key, from the first start on."""
    worker.clear(mode)
    worker.tune(mode)
    runs.clear(worker.connection)
    worker.send(mode, runs.messages(BUSY, range(count), handler))
    bench.settle()
    how = {"processes": worker.processes, "concurrency": worker.threads}
    with running(worker, mode, **how) as found:
        found.wait_for(lambda: runs.has_started(worker.connection, BUSY))
        yield
    worker.clear(mode)


def newcomers(worker: Worker, mode: str) -> list[float]:
    """For each message of another key: how many of the busy key start until it does."""
    sent = []
    for number in range(NEWCOMERS):
        worker.send(mode, runs.messages(NEWCOMER, range(number, number + 1), 0))
        sent.append(runs.now(worker.connection))
        until = time.monotonic() + PATIENCE
        while not runs.has_started(worker.connection, NEWCOMER, number):
            if time.monotonic() > until:
                return [math.inf]
            time.sleep(0.01)
    return waits(runs.read(worker.connection), sent)


def waits(seen: list[runs.Run], sent: list[int]) -> list[float]:
    """How many runs of the busy key start between a newcomer's send and its start."""
    # The first start of a message that is delivered twice.
    starts = {run.number: run.started for run in reversed(seen) if run.key == NEWCOMER}
    return [
        sum(run.key == BUSY and moment < run.started < starts[number] for run in seen)
        for number, moment in enumerate(sent)
    ]


def capped(busy: list[runs.Run], cap: int, seconds: float) -> dict[str, float]:
    """How a cap was kept, and the rate of the first ``seconds``."""
    most, over = over_cap([(run.started, run.ended) for run in busy], cap)
    until = busy[0].started + seconds * SECOND
    return {
        "the cap": cap,
        "most at once": most,
        "starts over the cap": over,
        "messages/s under the cap": sum(run.started < until for run in busy) / seconds,
    }


def rated(busy: list[runs.Run], rate: int, seconds: float) -> dict[str, float]:
    """How a rate with a burst of one was kept, and its share that the first ``seconds`` reached."""
    starts = [run.started for run in busy]
    worst, over = over_rate(starts, rate, burst=1)
    # Ends between two due starts, so that an early one does not count.
    until = starts[0] + (seconds - 0.5 / rate) * SECOND
    return {
        "share of the rate": sum(start < until for start in starts) / (rate * seconds),
        "worst excess over the rate": worst,
        "starts over the rate": over,
    }
