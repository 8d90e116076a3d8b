"""Bad conditions: many unreadable messages in front, a deep backlog, an old snapshot."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks import database, peers
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.scenarios.read import backlog, cycle_task

HOUR = 3600
CONTESTANTS = {"ours": "ours, bare cursor", "PGMQ": "PGMQ"}


def after(bench: Any, prepare: Any) -> dict[str, Measure]:
    """Each contestant's rate on a clean queue, and on a prepared one."""

    def measure(peer: str, prepared: bool) -> Measure:
        queues, name = bench.queue(peer)
        if prepared:
            prepare(queues, name)

        def run() -> float:
            queues.fill(name, bench.payload.bodies, backlog(bench))
            bench.settle()
            return bench.clients.run(1, cycle_task, bench.seconds, peer=peer, queue=name, batch=100)

        return run

    return {
        f"{label}{', behind' if prepared else ''}": measure(peer, prepared)
        for label, peer in CONTESTANTS.items()
        if bench.has(peer)
        for prepared in (False, True)
    }


BEHIND = (
    Goal("ours, behind", "ours", at_least=0.9),
    Goal("PGMQ, behind", "PGMQ", at_least=0.9),
)


@scenario("Read 100 and archive, behind 1,000,000 delayed (quick: 50,000)", goals=BEHIND)
def depth_delayed(bench: Any) -> dict[str, Measure]:
    count = bench.amount(50_000, 1_000_000)
    bodies = bench.payload.bodies
    return after(bench, lambda queues, name: queues.fill(name, bodies, count, delay=HOUR))


@scenario("Read 100 and archive, behind 100,000 in flight (quick: 20,000)", goals=BEHIND)
def depth_in_flight(bench: Any) -> dict[str, Measure]:
    count = bench.amount(20_000, 100_000)

    def prepare(queues: Any, name: str) -> None:
        queues.fill(name, bench.payload.bodies, count)
        queues.hold(name, count)

    return after(bench, prepare)


@scenario(
    "Read 100 and archive, from shallow to deep",
    baseline="ours, 10,000",
    goals=tuple(
        Goal(f"{who}, {deep:,}", f"{who}, 10,000", at_least=0.85)
        for who in CONTESTANTS
        for deep in (100_000, 1_000_000, 10_000_000)
    ),
)
def depth_backlog(bench: Any) -> dict[str, Measure]:
    depths = bench.amount(
        (10_000, 100_000), (10_000, 100_000, 1_000_000), (10_000, 100_000, 1_000_000, 10_000_000)
    )

    def measure(peer: str, depth: int) -> Measure:
        queues, name = bench.queue(peer)
        queues.fill(name, bench.payload.bodies, depth)
        missing = 0

        def run() -> float:
            nonlocal missing
            queues.fill(name, bench.payload.bodies, missing)
            bench.settle()
            # At most as many as the shallowest queue holds.
            count, started, ended = bench.clients.shares(
                1, bounded_task, bench.seconds, peer=peer, queue=name, most=5_000
            )[0]
            missing = count
            return count / (ended - started)

        return run

    return {
        f"{label}, {depth:,}": measure(peer, depth)
        for depth in depths
        for label, peer in CONTESTANTS.items()
        if bench.has(peer)
    }


def bounded_task(peer: str, queue: str, most: int, place: int) -> Any:
    """Read and archive 100 at a time, up to ``most``."""
    queues = peers.open_queues(peer)
    steps = itertools.count(100, 100)
    return lambda: queues.cycle(queue, 100) if next(steps) <= most else 0


#: The unit of the last fifth's rate, as a share of the first fifth's: a falling rate keeps falling.
FLAT = "of its first fifth"


@scenario(
    "Send, read and archive 100, while a snapshot is held open",
    baseline="PGMQ, clean",
    rounds=3,
    goals=(
        Goal("ours, at the end", "ours, clean", at_least=0.8),
        Goal("ours, at the end", at_least=0.8, unit=FLAT),
        Goal("PGMQ, at the end", "PGMQ, clean", at_least=0.8),
    ),
)
def depth_snapshot(bench: Any) -> dict[str, Measure]:
    held = bench.amount(3, 60, 600)
    part = held / 5

    def clean(peer: str) -> Measure:
        _, name = bench.queue(peer)
        return lambda: flow(name, peer, part)

    def flow(name: str, peer: str, seconds: float) -> float:
        return bench.clients.run(1, flow_task, seconds, peer=peer, queue=name)

    def at_the_end(peer: str) -> Measure:
        def run() -> dict[str, float]:
            _, name = bench.queue(peer)
            with database.connect() as holder:
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT pg_current_xact_id()")
                rates = [flow(name, peer, part) for _ in range(5)]
                holder.execute("ROLLBACK")
            bench.settle()
            return {"messages/s": rates[-1], FLAT: rates[-1] / rates[0]}

        return run

    measures: dict[str, Measure] = {}
    for label, peer in CONTESTANTS.items():
        if bench.has(peer):
            measures[f"{label}, clean"] = clean(peer)
            measures[f"{label}, at the end"] = at_the_end(peer)
    return measures


def flow_task(peer: str, queue: str, place: int) -> Any:
    """Send 100, then read and archive 100: the queue keeps its depth."""
    queues = peers.open_queues(peer)
    bodies = [{"x": "y" * 192}] * 100

    def step() -> int:
        queues.send_batch(queue, bodies)
        return queues.cycle(queue, 100)

    return step
