"""All contestants: enqueue, drain with one or many workers, and delays at a fixed rate.

Each contestant runs with its defaults and tuned as its documentation advises (its file in
``benchmarks/peers`` names the page), with the same messages.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import notes, open_loop
from benchmarks.payloads import BODY
from benchmarks.peers import WORKERS, Worker
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import drained, running

ALL = tuple(WORKERS)
#: Concurrencies: handlers in one process, and numbers of processes.
NUMBERS = (1, 4, 16)
SENDERS = 4


def labelled(workers: dict[str, Worker]) -> dict[str, Worker]:
    """The workers by the labels used in the results."""
    return {f"{label}, tuned" if w.is_tuned else label: w for label, w in workers.items()}


@scenario(
    "Enqueue one at a time, each its own commit", baseline="django-tasks-db", unit="messages/s"
)
def peers_enqueue(bench: Any) -> dict[str, Measure]:
    bench.made_of = "one connection, 200 bytes each"

    def rate(worker: Worker) -> float:
        found = bench.rate(lambda: worker.enqueue(BODY, "drain") or 1)
        worker.clear("drain")
        return found

    return {label: partial(rate, worker) for label, worker in bench.workers(*ALL).items()}


@scenario(
    "Enqueue many, as the documentation says for many",
    baseline="django-tasks-db, tuned",
    goals=(Goal("ours, tasks, tuned", "django-tasks-db, tuned", at_least=5),),
)
def peers_enqueue_many(bench: Any) -> dict[str, Measure]:
    count = bench.amount(2_000, 10_000)
    bench.made_of = f"{count:,} messages of 200 bytes, one connection"

    def rate(worker: Worker) -> float:
        started = time.monotonic()
        worker.enqueue_many([BODY] * count, "drain")
        seconds = time.monotonic() - started
        worker.clear("drain")
        return count / seconds

    # The only contestant whose default is another way to enqueue.
    workers = bench.workers("django-tasks-db") | labelled(bench.workers(*ALL, is_tuned=True))
    return {label: partial(rate, worker) for label, worker in workers.items()}


@scenario(
    "One worker process drains a backlog, the handler does nothing",
    baseline="PgQueuer, tuned",
    goals=(
        Goal("ours", "PgQueuer, tuned", at_least=2),
        Goal("ours, tuned", "PgQueuer, tuned", at_least=3),
        Goal("ours", "Procrastinate, tuned", at_least=10),
        Goal("ours, tasks, tuned", "django-tasks-db, tuned", at_least=50),
    ),
)
def peers_drain(bench: Any) -> dict[str, Measure]:
    workers = bench.workers(*ALL) | labelled(bench.workers(*ALL, is_tuned=True))
    return {label: partial(drain, bench, w, "drain") for label, w in workers.items()}


def drain(bench: Any, worker: Worker, mode: str, **how: int) -> dict[str, float]:
    count, limit = bench.amount((10_000, 1.5), (50_000, 4), (100_000, 20))
    bench.made_of = f"a backlog of {count:,} messages of 200 bytes, until it is done or {limit} s"
    return drained(worker, mode, count, limit=limit, settle=bench.settle, **how)


@scenario(
    "One process with 1, 4 and 16 handlers at once, each waits 10 ms",
    baseline="the limit, 16",
    rounds=2,
)
def peers_concurrency(bench: Any) -> dict[str, Measure]:
    workers = bench.workers(*ALL, is_tuned=True)
    measures: dict[str, Measure] = {
        f"{label}, {number}": partial(drain, bench, worker, "wait", concurrency=number)
        for number in NUMBERS
        for label, worker in workers.items()
        if worker.has_concurrency
    }
    return measures | {f"the limit, {number}": partial(float, number * 100) for number in NUMBERS}


@scenario(
    "1, 4 and 16 worker processes drain a backlog, the handler does nothing",
    baseline="PgQueuer, 1",
    rounds=2,
)
def peers_processes(bench: Any) -> dict[str, Measure]:
    workers = bench.workers(*ALL, is_tuned=True)
    return {
        f"{label}, {number}": partial(drain, bench, worker, "drain", processes=number)
        for number in NUMBERS
        for label, worker in workers.items()
    }


@scenario(
    "Open loop, 100 messages a second: from the intended moment of the send to the handler",
    unit="ms, p50",
    baseline="PgQueuer, tuned",
    rounds=2,
    goals=tuple(
        Goal("ours", peer, at_most=1, unit=unit)
        for peer in ("PgQueuer, tuned", "Procrastinate, tuned", "django-tasks-db, tuned")
        for unit in ("ms, p50", "ms, p99")
    ),
)
def peers_latency_100(bench: Any) -> dict[str, Measure]:
    return latencies(bench, 100, bench.amount(2, 10, 60))


@scenario(
    "Open loop, 500 messages a second: from the intended moment of the send to the handler",
    unit="ms, p50",
    baseline="PgQueuer, tuned",
    rounds=2,
)
def peers_latency_500(bench: Any) -> dict[str, Measure]:
    return latencies(bench, 500, bench.amount(2, 6, 60))


def latencies(bench: Any, rate: int, seconds: int) -> dict[str, Measure]:
    bench.made_of = (
        f"{rate * seconds:,} messages at fixed moments over {seconds} s, from {SENDERS} connections"
    )
    # Ours has no separate tuning for delays.
    others = [label for label in ALL if not label.startswith("ours")]
    workers = bench.workers(*ALL) | labelled(bench.workers(*others, is_tuned=True))
    return {
        label: partial(late, bench, label.removesuffix(", tuned"), worker, rate, seconds)
        for label, worker in workers.items()
    }


def late(bench: Any, label: str, worker: Worker, rate: int, seconds: int) -> dict[str, float]:
    """Percentiles of the delays, and the share handled until shortly after the last send."""
    worker.clear("latency")
    worker.tune("latency")

    def send(start: float, count: int) -> list[float]:
        due = open_loop.moments(start, rate, count, SENDERS)
        bench.clients.shares(
            SENDERS,
            open_loop.sender,
            2 * seconds,
            label=label,
            is_tuned=worker.is_tuned,
            mode="latency",
            due=due,
        )
        return list(chain.from_iterable(due))

    with tempfile.TemporaryDirectory() as directory:
        noted = Path(directory) / "notes"
        with running(worker, "latency", **{notes.VARIABLE: str(noted)}) as found:
            # Warm up: connections are open and the worker runs before the measurement.
            warm = set(send(time.monotonic(), SENDERS))
            found.wait_for(lambda: warm <= notes.delays(noted).keys())
            time.sleep(0.5)
            sent = send(time.monotonic() + 0.2, rate * seconds)
            until = time.monotonic() + 2
            while len(notes.delays(noted)) < len(sent) + len(warm) and time.monotonic() < until:
                time.sleep(0.1)
            ended = time.monotonic()
            handled = notes.delays(noted)
    worker.clear("latency")
    delays = [1000 * delay for delay in open_loop.delays(sent, handled, ended)]
    return {
        **{f"ms, p{p}": open_loop.percentile(delays, p) for p in (50, 99, 99.9)},
        "% handled": 100 * sum(moment in handled for moment in sent) / len(sent),
    }
