"""Reads and archives under good conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import peers
from benchmarks.peers import bare
from benchmarks.scenarios import Goal, Measure, beside_pgmq, scenario

READERS = ("ours", "ours, bare cursor", "PGMQ")
# Our queue decodes bodies with msgspec if it is installed; this lets PGMQ do so too.
DECODERS = (*READERS, "PGMQ, msgspec")


def cycle_task(peer: str, queue: str, batch: int, place: int) -> Any:
    """Read and archive repeatedly."""
    queues = peers.open_queues(peer)
    return lambda: queues.cycle(queue, batch)


def backlog(bench: Any) -> int:
    """More messages than a round reads; fewer of webhooks, which are forty times as large."""
    return bench.amount(10_000, 100_000) // (1 if bench.payload.is_small else 5)


def drains(
    bench: Any, clients: int, batch: int, readers: Sequence[str] = READERS
) -> dict[str, Measure]:
    """Every contestant reads from a new backlog in each round."""

    def measure(peer: str) -> Measure:
        def run() -> float:
            # A new queue in each round, equally deep for every contestant.
            queues, name = bench.queue(peer)
            queues.fill(name, bench.payload.bodies, backlog(bench))
            bench.settle()
            rate = bench.clients.run(
                clients, cycle_task, bench.seconds, peer=peer, queue=name, batch=batch
            )
            bench.drop(name)
            return rate

        return run

    return bench.each(measure, *readers)


@scenario(
    "Read 100 and archive them, 1 client",
    goals=beside_pgmq(1.1),
    webhooks=True,
)
def read_100(bench: Any) -> dict[str, Measure]:
    measures = drains(bench, clients=1, batch=100, readers=DECODERS)

    def limit() -> float:
        bare.copy_in(bench.payload.take(backlog(bench)))
        bench.settle()
        queues = bare.Queues()
        return bench.rate(lambda: queues.cycle("", 100))

    measures["delete from a plain table"] = limit
    return measures


@scenario(
    "Read 100 and archive them, 4 clients",
    goals=beside_pgmq(1.5, webhooks=2.0),
    webhooks=True,
)
def read_100_4_clients(bench: Any) -> dict[str, Measure]:
    return drains(bench, clients=4, batch=100, readers=DECODERS)


@scenario(
    "Read 1 and archive it, 1 client",
    goals=beside_pgmq(1.2),
)
def read_1(bench: Any) -> dict[str, Measure]:
    return drains(bench, clients=1, batch=1)


@scenario(
    "Read 1 and archive it, 8 clients",
    goals=beside_pgmq(1.2),
)
def read_1_8_clients(bench: Any) -> dict[str, Measure]:
    return drains(bench, clients=8, batch=1)


@scenario(
    "Write-ahead log of a message, from send to archive, in batches of 100",
    unit="bytes a message",
    goals=(Goal("ours", "PGMQ", at_most=0.65, webhooks=0.45),),
    webhooks=True,
)
def read_wal(bench: Any) -> dict[str, Measure]:
    batches = bench.amount(20, 100)

    def measure(peer: str) -> Measure:
        queues, name = bench.queue(peer)

        def run() -> float:
            before = bench.wal()
            for _ in range(batches):
                queues.send_batch(name, bench.payload.take(100))
            for _ in range(batches):
                queues.cycle(name, 100)
            return (bench.wal() - before) / (batches * 100)

        return run

    return bench.each(measure, "ours", "PGMQ")
