"""Bad conditions: many unreadable messages in front, an old snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from benchmarks import database, peers
from benchmarks.payloads import BODY
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
    measures: dict[str, Measure] = {}
    for label, peer in CONTESTANTS.items():
        if bench.has(peer):
            measures |= under_snapshot(bench, label, peer)
    return measures


def under_snapshot(
    bench: Any, label: str, peer: str, groups: Sequence[str] = (), **options: Any
) -> dict[str, Measure]:
    """A contestant's rate on a new queue with these options, and after a while under a snapshot."""
    held = bench.amount(3, 60, 600)

    def flow(name: str) -> float:
        how = {"peer": peer, "queue": name, "groups": groups}
        return bench.clients.run(1, flow_task, held / 5, **how)

    def clean() -> float:
        return flow(bench.queue(peer, **options)[1])

    def at_the_end() -> dict[str, float]:
        _, name = bench.queue(peer, **options)
        with database.connect() as holder:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT pg_current_xact_id()")
            rates = [flow(name) for _ in range(5)]
            holder.execute("ROLLBACK")
        bench.settle()
        return {"messages/s": rates[-1], FLAT: rates[-1] / rates[0]}

    return {f"{label}, clean": clean, f"{label}, at the end": at_the_end}


def flow_task(peer: str, queue: str, groups: Sequence[str], place: int) -> Any:
    """Send 100, of these groups in turn, then read and archive 100: the queue keeps its depth."""
    queues = peers.open_queues(peer)
    bodies = [BODY] * 100
    turns = cycle(groups)

    def step() -> int:
        if groups:
            queues.send_grouped(queue, bodies, list(islice(turns, len(bodies))))
        else:
            queues.send_batch(queue, bodies)
        return queues.cycle(queue, 100)

    return step
