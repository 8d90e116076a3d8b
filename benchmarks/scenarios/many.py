"""A thousand queues."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks import database, peers
from benchmarks.peers import ours, pgmq
from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue.models import Message

CLIENTS = 8


def thousand(bench: Any) -> int:
    return bench.amount(100, 1000)


def make(bench: Any, peer: str, count: int) -> list[str]:
    names = []
    for number in range(count):
        if number % 50 == 0:
            bench.tell(f"{peer}: queue {number} of {count}")
        names.append(bench.queue(peer)[1])
    return names


@scenario(
    "8 clients send, read and archive 10 at a time, on one queue and on 1,000 (quick: 100)",
    baseline="PGMQ, one",
    goals=(
        Goal("ours, many", "ours, one", at_least=0.85),
        Goal("PGMQ, many", "PGMQ, one", at_least=0.85),
    ),
)
def many_clients(bench: Any) -> dict[str, Measure]:
    def measure(peer: str, names: list[str]) -> Measure:
        return lambda: bench.clients.run(CLIENTS, round_task, bench.seconds, peer=peer, names=names)

    measures = {}
    for peer in bench.contestants("ours", "PGMQ"):
        names = make(bench, peer, thousand(bench))
        measures[f"{peer}, one"] = measure(peer, names[:1])
        measures[f"{peer}, many"] = measure(peer, names)
    bench.settle()
    return measures


def round_task(peer: str, names: list[str], place: int) -> Any:
    """Send, read and archive 10 in each queue in turn; each client has its own queues."""
    queues = peers.open_queues(peer)
    bodies = [{"x": "y" * 192}] * 10
    own = names[place::CLIENTS] or names
    turn = itertools.cycle(own)

    def step() -> int:
        name = next(turn)
        queues.send_batch(name, bodies)
        queues.cycle(name, 10)
        return 10

    # Warm up: a connection loads each queue's table definitions once.
    for _ in own:
        step()
    return step


@scenario(
    "Metrics of all of 1,000 queues with 1,000,000 messages (quick: 100 with 20,000; "
    "full: 10,000,000)",
    unit="ms",
    goals=(Goal("ours", at_most=50),),
)
def many_metrics(bench: Any) -> dict[str, Measure]:
    count = thousand(bench)
    each = bench.amount(200, 1000, 10_000)
    bodies = bench.payload.bodies
    bare_pgmq = None
    for peer in bench.contestants("ours", "PGMQ"):
        names = make(bench, peer, count)
        queues = peers.open_queues(peer)
        for number, name in enumerate(names):
            if number % 50 == 0:
                bench.tell(f"{peer}: filling queue {number} of {count}")
            queues.fill(name, bodies, each)
        if peer == "PGMQ":
            bare_pgmq = queues
    bench.settle()

    def timed(function: Any) -> float:
        started = time.monotonic()
        assert len(function()) >= count
        return (time.monotonic() - started) * 1000

    measures: dict[str, Measure] = {"ours": lambda: timed(Message.objects.metrics_all)}
    if isinstance(bare_pgmq, pgmq.Queues):
        cursor = bare_pgmq.cursor
        measures["PGMQ"] = lambda: timed(
            lambda: cursor.execute("SELECT * FROM pgmq.metrics_all()").fetchall()
        )
    return measures


@scenario(
    "Longest wait of 4 senders, while queues are made beside 1,000 others (quick: 100)",
    unit="ms",
    rounds=3,
    goals=(Goal("ours, creating", at_most=100),),
)
def many_create(bench: Any) -> dict[str, Measure]:
    make(bench, "ours", thousand(bench))
    _, busy = bench.queue("ours")
    seconds = bench.seconds

    def longest(creating: bool) -> float:
        made = []
        with database.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS benchmark_wait")
            connection.execute("CREATE TABLE benchmark_wait (ms float)")
        bench.clients.start(4, waiting_task, seconds, queue=busy)
        started = time.monotonic()
        while creating and time.monotonic() - started < seconds * 0.9:
            made.append(bench.queue("ours")[1])
        bench.clients.finish(4)
        (wait,) = bench.sql("SELECT max(ms) FROM benchmark_wait")[0]
        return wait

    return {
        "ours, creating": lambda: longest(True),
        "ours, not creating": lambda: longest(False),
    }


def waiting_task(queue: str, place: int) -> Any:
    """Send one by one, and record each new maximum wait."""
    queues = ours.Queues()
    connection = database.connect()
    worst = 0.0
    queues.send(queue, {})

    def step() -> int:
        nonlocal worst
        started = time.monotonic()
        queues.send(queue, {})
        waited = (time.monotonic() - started) * 1000
        if waited > worst:
            worst = waited
            connection.execute("INSERT INTO benchmark_wait VALUES (%s)", [waited])
        return 1

    return step
