"""One of our consumer processes, measured from outside."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.workers import drained


@scenario(
    "Drain 40,000 messages, with history and without (quick: 4,000)",
    baseline="without history",
    goals=(Goal("with history", "without history", at_least=0.98),),
)
def consumer_history(bench: Any) -> dict[str, Measure]:
    worker = bench.workers("ours")["ours"]
    count = bench.amount(4_000, 40_000)
    drain = partial(drained, worker, "drain", count, limit=60, settle=bench.settle)
    return {
        f"{label} history": partial(drain, BENCHMARK_HISTORY=seconds)
        for label, seconds in (("with", "10"), ("without", ""))
    }
