"""One of our consumer processes, measured from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import START_SECONDS, running

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
    worker = bench.workers("ours")["ours"]

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
    worker = bench.workers("ours")["ours"]

    def measure(count: int, groups: int) -> Measure:
        return lambda: count / emptied(worker, "ordered", count, groups=groups)

    return {
        "one group": measure(bench.amount(100, 1000), 1),
        "100 groups": measure(bench.amount(1000, 5000), 100),
    }


def emptied(worker: Any, mode: str, count: int, *, held: bool = False, groups: int = 0) -> float:
    """Seconds in which a consumer handles ``count`` messages, from first lease to last ack."""
    worker.clear(mode)
    if groups:
        worker.fill_groups(count, mode, groups)
    else:
        worker.fill(count, mode)
    if held:
        worker.abandon(count, mode)
    with running(worker, mode) as found:
        # Polls rarely: each poll slows the consumer.
        found.wait_for(lambda: not worker.remaining(mode), START_SECONDS + count / 20, pause=0.2)
    return worker.seconds(mode)


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
    worker = bench.workers("ours")["ours"]

    def grown() -> float:
        worker.clear("drain")
        worker.fill(count, "drain")
        with running(worker, "drain") as found:
            found.wait_for(lambda: worker.remaining("drain") < count * 0.9, 600)
            early = resident(found.pid)
            found.wait_for(lambda: worker.remaining("drain") < count * 0.01, 3600)
            return resident(found.pid) - early

    return {"ours": grown}


def resident(pid: int) -> float:
    """Megabytes of resident memory of a process, on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the memory of process {pid} is unknown")
