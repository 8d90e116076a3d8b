"""One consumer process of each kind, from outside."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import notes, peers
from benchmarks.scenarios import Goal, Measure, scenario

PEERS = ("PgQueuer", "Procrastinate", "django-tasks-db")
START_SECONDS = 30


@contextmanager
def running(worker: Any, mode: str, log: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """The consumer's process; asked to stop at the end, as an init system would."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            worker.command(mode),
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then comes back here
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(
    condition: Any, process: subprocess.Popen, log: Path, seconds: float, pause: float = 0.005
) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(process.args)} does not consume:\n{said}")
        time.sleep(0.005)


def workers(bench: Any, *labels: str) -> dict[str, Any]:
    found = {label: peers.open_worker(label) for label in bench.contestants("ours", *labels)}
    for worker in found.values():
        worker.install()
        bench.on_close(worker.close)
    return found


@scenario(
    "One consumer process drains 20,000 messages, the handler does nothing",
    baseline="PgQueuer",
    goals=(
        Goal("ours", "PgQueuer", at_least=2),
        Goal("ours, batch handler", "PgQueuer", at_least=3),
        Goal("ours", "Procrastinate", at_least=50),
        Goal("ours", "django-tasks-db", at_least=200),
        Goal("ours, TRANSACTIONAL, writes a row", "Procrastinate", at_least=5),
    ),
)
def consumer_drain(bench: Any) -> dict[str, Measure]:
    found = workers(bench, *PEERS)
    limit = bench.amount(2, 15)

    def measure(worker: Any, mode: str) -> Measure:
        return lambda: drained(worker, mode, limit)

    measures = {label: measure(worker, "drain") for label, worker in found.items()}
    measures["ours, batch handler"] = measure(found["ours"], "batch")
    measures["ours, TRANSACTIONAL, writes a row"] = measure(found["ours"], "transactional")
    return measures


def drained(worker: Any, mode: str, limit: float) -> float:
    """Messages a second, from the first that is seen to be done to the last, or to the limit."""
    worker.clear(mode)
    worker.fill(worker.most, mode)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with running(worker, mode, log) as process:
            left = worker.most

            def begun() -> bool:
                nonlocal left
                left = worker.remaining(mode)
                return left < worker.most

            wait_for(begun, process, log, START_SECONDS)
            first, started = left, time.monotonic()
            while left and time.monotonic() - started < limit:
                time.sleep(0.01)
                left = worker.remaining(mode)
            ended = time.monotonic()
    worker.clear(mode)
    return (first - left) / (ended - started)


HELD = 300
HANDLERS = {"no-op": "drain", "20 ms": "drain-20ms", "50 ms": "drain-50ms"}


@scenario(
    f"Drain {HELD} messages that a killed consumer held, against fresh ones",
    unit="s",
    baseline="fresh, no-op",
    rounds=5,
    goals=tuple(Goal(f"held, {handler}", f"fresh, {handler}", at_most=1.3) for handler in HANDLERS),
)
def consumer_rescued(bench: Any) -> dict[str, Measure]:
    worker = workers(bench)["ours"]

    def measure(mode: str, held: bool) -> Measure:
        return lambda: emptied(worker, mode, HELD, held=held)

    return {
        f"{'held' if held else 'fresh'}, {handler}": measure(mode, held)
        for handler, mode in HANDLERS.items()
        for held in (False, True)
    }


@scenario(
    "FIFO groups through one consumer process, the handler does nothing", baseline="one group"
)
def consumer_groups(bench: Any) -> dict[str, Measure]:
    worker = workers(bench)["ours"]

    def measure(count: int, groups: int) -> Measure:
        return lambda: count / emptied(worker, "ordered", count, groups=groups)

    return {
        "one group": measure(bench.amount(100, 1000), 1),
        "100 groups": measure(bench.amount(1000, 5000), 100),
    }


def emptied(worker: Any, mode: str, count: int, *, held: bool = False, groups: int = 0) -> float:
    """Seconds a consumer takes for ``count`` messages, from its first lease to its last ack."""
    worker.clear(mode)
    worker.forget_archived(mode)
    if groups:
        worker.fill_groups(count, mode, groups)
    else:
        worker.fill(count, mode)
    if held:
        worker.abandon(count, mode)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with running(worker, mode, log) as process:
            # Seldom: each look takes time from what is measured.
            wait_for(
                lambda: not worker.remaining(mode),
                process,
                log,
                START_SECONDS + count / 20,
                pause=0.2,
            )
    return worker.seconds(mode)


@scenario(
    "Pick-up by an idle consumer: from before the send until the handler runs",
    unit="ms, median",
    baseline="PgQueuer",
    rounds=3,
    goals=tuple(
        Goal("ours", peer, at_most=1, unit=unit)
        for peer in PEERS
        for unit in ("ms, median", "ms, 99th percentile")
    ),
)
def consumer_latency(bench: Any) -> dict[str, Measure]:
    count = bench.amount(60, 300)

    def measure(worker: Any) -> Measure:
        return lambda: picked_up(worker, count)

    return {label: measure(worker) for label, worker in workers(bench, *PEERS).items()}


def picked_up(worker: Any, count: int) -> dict[str, float]:
    worker.clear("latency")
    with tempfile.TemporaryDirectory() as directory:
        log, noted = Path(directory) / "log", Path(directory) / "notes"
        with running(worker, "latency", log, **{notes.VARIABLE: str(noted)}) as process:
            worker.send({"sent": time.monotonic()}, "latency")
            wait_for(lambda: len(notes.read(noted)) == 1, process, log, START_SECONDS)
            for _ in range(count):
                time.sleep(random.uniform(0.02, 0.05))
                worker.send({"sent": time.monotonic()}, "latency")
            wait_for(lambda: len(notes.read(noted)) > count, process, log, START_SECONDS)
            delays = notes.read(noted)[1:]
    return {
        "ms, median": statistics.median(delays),
        "ms, 99th percentile": statistics.quantiles(delays, n=100)[98],
    }


@scenario(
    "Memory of a consumer over a million messages, from a tenth of them to the end",
    unit="MB grown",
    baseline="ours",
    rounds=1,
    full_only=True,
    goals=(Goal("ours", at_most=5),),
)
def consumer_memory(bench: Any) -> dict[str, Measure]:
    count = 1_000_000
    worker = workers(bench)["ours"]

    def grown() -> float:
        worker.clear("drain")
        worker.fill(count, "drain")
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory) / "log"
            with running(worker, "drain", log) as process:
                wait_for(lambda: worker.remaining("drain") < count * 0.9, process, log, 600)
                early = resident(process.pid)
                wait_for(lambda: worker.remaining("drain") < count * 0.01, process, log, 3600)
                return resident(process.pid) - early

    return {"ours": grown}


def resident(pid: int) -> float:
    """Megabytes of memory that a process really has, on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory known of process {pid}")
