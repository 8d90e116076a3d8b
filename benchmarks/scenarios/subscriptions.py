"""Subscriptions beside queues: many readers of one queue, and a queue for each reader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import database, peers
from benchmarks.load.observe import Observer
from benchmarks.payloads import BODY
from benchmarks.scenarios import Goal, Measure, scenario
from benchmarks.scenarios.depth import FLAT
from benchmarks.scenarios.read import backlog, cycle_task
from django_pgqueue import queue
from django_pgqueue.models import Message, Queue

#: The subscriptions of one source, and the queues that a topic fills.
READERS = 5
KEY = "orders.created"
#: A statement is planned each time until psycopg has prepared it and PostgreSQL keeps its plan.
WARM = 15


def warm(step: Callable[[], int]) -> Callable[[], int]:
    """Call a step until its statements have plans that are kept: planning is not measured."""
    for _ in range(WARM):
        step()
    return step


def reader_task(peer: str, name: str, batch: int, place: int) -> Any:
    return warm(cycle_task(peer, name, batch, place))


def reads(bench: Any, clients: int, batch: int) -> dict[str, Measure]:
    """Read and acknowledge the same backlog, of a queue and of a subscription's source."""

    def measure(peer: str, is_subscription: bool) -> Measure:
        def run() -> float:
            # A new queue in each round, equally deep for both.
            queues, name = bench.queue(peer)
            read = bench.queue(peer, to=name)[1] if is_subscription else name
            queues.fill(name, bench.payload.bodies, backlog(bench) + clients * WARM * batch)
            bench.settle()
            options = {"peer": peer, "name": read, "batch": batch}
            rate: float = bench.clients.run(clients, reader_task, bench.seconds, **options)
            if is_subscription:
                bench.drop(read)
            bench.drop(name)
            return rate

        return run

    return {
        f"{kind}{bare}": measure(f"ours{bare}", kind == "subscription")
        for bare in ("", ", bare cursor")
        for kind in ("queue", "subscription")
    }


def beside_a_queue(at_least: float) -> tuple[Goal, ...]:
    return (Goal("subscription", "queue", at_least=at_least),)


@scenario(
    "Read 100 of a queue and of a subscription and acknowledge them, 1 client",
    baseline="queue",
    goals=beside_a_queue(2.0),
)
def subscriptions_read_100(bench: Any) -> dict[str, Measure]:
    return reads(bench, clients=1, batch=100)


@scenario(
    "Read 1 of a queue and of a subscription and acknowledge it, 1 client",
    baseline="queue",
    goals=beside_a_queue(1.0),
)
def subscriptions_read_1(bench: Any) -> dict[str, Measure]:
    return reads(bench, clients=1, batch=1)


@scenario(
    "Read 100 of a queue and of a subscription and acknowledge them, 8 clients", baseline="queue"
)
def subscriptions_read_100_8_clients(bench: Any) -> dict[str, Measure]:
    return reads(bench, clients=8, batch=100)


@scenario("Read 1 of a queue and of a subscription and acknowledge it, 8 clients", baseline="queue")
def subscriptions_read_1_8_clients(bench: Any) -> dict[str, Measure]:
    return reads(bench, clients=8, batch=1)


def delivered(bench: Any, counter: Callable[[], float]) -> dict[str, Measure]:
    """What a delivered message adds to a counter, from its send to the last acknowledgement.

    The readers read each batch when it is sent, or all batches at the end. The queues are the same
    in all rounds, so that no statement is new.
    """
    batches = bench.amount(20, 100)
    bench.made_of = f"{batches} batches of 100 for {READERS} readers"
    queues = peers.open_queues("ours")
    copies = [bench.queue("ours")[1] for _ in range(READERS)]
    for name in copies:
        Message.objects.bind(KEY, name)
    _, source = bench.queue("ours")
    subscriptions = [bench.queue("ours", to=source)[1] for _ in range(READERS)]

    def publish() -> None:
        Message.objects.publish_batch(KEY, bench.payload.take(100))

    def send() -> None:
        queues.send_batch(source, bench.payload.take(100))

    def flow(produce: Callable[[], None], names: list[str], count: int, each: int) -> int:
        read = 0
        for _ in range(0, count, each):
            for _ in range(each):
                produce()
            for name in names:
                read += sum(queues.cycle(name, 100) for _ in range(each))
        return read

    def measure(produce: Callable[[], None], names: list[str], each: int) -> Measure:
        flow(produce, names, WARM, 1)

        def run() -> float:
            before = counter()
            read = flow(produce, names, batches, each)
            if read != batches * 100 * READERS:
                raise AssertionError(f"delivered {read} of {batches * 100 * READERS} messages")
            return (counter() - before) / read

        return run

    return {
        f"{kind}, {when}": measure(produce, names, each)
        for when, each in (("each batch at once", 1), ("all at the end", batches))
        for kind, produce, names in (
            ("queues", publish, copies),
            ("subscriptions", send, subscriptions),
        )
    }


def beside_copies(at_most: float) -> tuple[Goal, ...]:
    return tuple(
        Goal(f"subscriptions, {when}", f"queues, {when}", at_most=at_most)
        for when in ("each batch at once", "all at the end")
    )


@scenario(
    f"Write-ahead log of a delivered message: {READERS} subscriptions beside {READERS} queues "
    "filled by a topic, in batches of 100",
    unit="bytes a message",
    baseline="queues, each batch at once",
    goals=beside_copies(0.25),
    webhooks=True,
)
def subscriptions_log(bench: Any) -> dict[str, Measure]:
    return delivered(bench, bench.wal)


@scenario(
    f"The server's processor time of a delivered message: {READERS} subscriptions beside "
    f"{READERS} queues filled by a topic, in batches of 100",
    unit="µs a message",
    baseline="queues, each batch at once",
    goals=beside_copies(0.4),
)
def subscriptions_cpu(bench: Any) -> dict[str, Measure]:
    observer = Observer()
    bench.on_close(observer.close)
    if observer.postmaster is None:
        raise RuntimeError("the server must run on this machine to measure its processor time")
    return delivered(bench, lambda: observer.read(os.getpid()).server_ns / 1000)


@scenario(
    "Read 100 of a subscription and acknowledge them: at the end, 100,000 behind and 1,000,000 "
    "behind (quick: 10,000 and 50,000; full: 100,000 and 10,000,000)",
    baseline="at the end",
    goals=(
        Goal("behind", "at the end", at_least=0.9),
        Goal("far behind", "at the end", at_least=0.9),
    ),
)
def subscriptions_depth(bench: Any) -> dict[str, Measure]:
    window = bench.amount(5_000, 50_000)
    depths = {
        "at the end": 0,
        "behind": bench.amount(10_000, 100_000),
        "far behind": bench.amount(50_000, 1_000_000, 10_000_000),
    }
    bench.made_of = f"{window:,} messages are read at each position"
    queues, source = bench.queue("ours")
    _, name = bench.queue("ours", to=source)
    queues.fill(source, bench.payload.bodies, max(depths.values()) + window)
    warm(lambda: queues.cycle(name, 100))
    bench.settle()
    [(last,)] = bench.sql(
        "SELECT max(id) FROM pgqueue_message WHERE queue_id = %s", [number_of(source)]
    )

    def measure(depth: int) -> float:
        queue(name).seek(last + 1 - depth - window)
        return float(bench.rate(lambda: queues.cycle(name, 100), window))

    return {label: partial(measure, depth) for label, depth in depths.items()}


def number_of(name: str) -> int:
    """The id of a queue, for a statement of the benchmark."""
    return int(Queue.objects.get(name=name).pk)


@scenario(
    "Read 10 of a subscription and acknowledge them, while a snapshot is held open for 10 s "
    "(quick: 2 s; full: 300 s)",
    baseline="before",
    rounds=3,
    goals=(
        Goal("at the end", "before", at_least=0.9),
        Goal("at the end", at_least=0.9, unit=FLAT),
    ),
)
def subscriptions_held_snapshot(bench: Any) -> dict[str, Measure]:
    held = bench.amount(2, 10, 300)
    queues, source = bench.queue("ours")
    queues.fill(source, bench.payload.bodies, backlog(bench))
    bench.settle()

    def subscribe() -> str:
        name: str = bench.queue("ours", to=source, start="earliest")[1]
        return name

    def flow(name: str) -> float:
        rate: float = bench.clients.run(1, endless_task, held / 5, name=name)
        return rate

    def moves(name: str) -> int:
        query = "SELECT number FROM pgqueue_cursor WHERE queue_id = %s"
        [(number,)] = bench.sql(query, [number_of(name)])
        return int(number)

    def before() -> float:
        name = subscribe()
        rate = flow(name)
        bench.drop(name)
        return rate

    def at_the_end() -> dict[str, float]:
        name = subscribe()
        with database.connect() as holder:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT pg_current_xact_id()")
            rates = [flow(name) for _ in range(5)]
            holder.execute("ROLLBACK")
        moved = moves(name)
        bench.drop(name)
        bench.settle()
        return {"messages/s": rates[-1], FLAT: rates[-1] / rates[0], "moves": moved}

    return {"before": before, "at the end": at_the_end}


def endless_task(name: str, place: int) -> Any:
    """Read and acknowledge 10; from the source's first message again when none is left."""
    queues = peers.open_queues("ours")

    def step() -> int:
        while not (done := queues.cycle(name, 10)):
            queue(name).seek("earliest")
        return done

    return warm(step)


ONE, HUNDRED = "messages/s, one at a time", "messages/s, in batches of 100"


@scenario(
    f"Send to a queue with {READERS} subscriptions and to one without: nobody reads, or {READERS} "
    "readers read at the same time",
    unit=ONE,
    baseline="no subscriptions",
    goals=tuple(
        Goal("subscriptions", "no subscriptions", at_least=0.85, unit=unit)
        for unit in (ONE, HUNDRED)
    ),
)
def subscriptions_send(bench: Any) -> dict[str, Measure]:
    def measure(has_subscriptions: bool, is_read: bool) -> Measure:
        _, name = bench.queue("ours")
        read = [name] * READERS
        if has_subscriptions:
            read = [bench.queue("ours", to=name)[1] for _ in range(READERS)]
        clients = 1 + READERS * is_read

        def rate(batch: int) -> float:
            options = {"name": name, "batch": batch, "read": read}
            sender, *_ = bench.clients.shares(clients, sender_task, bench.seconds, **options)
            count, started, ended = sender
            return count / (ended - started)

        return lambda: {ONE: rate(1), HUNDRED: rate(100)}

    return {
        f"{kind}{', read' if is_read else ''}": measure(kind == "subscriptions", is_read)
        for is_read in (False, True)
        for kind in ("no subscriptions", "subscriptions")
    }


def sender_task(name: str, batch: int, read: list[str], place: int) -> Any:
    """The first client sends, the others read. A reader that finds nothing waits a moment."""
    queues = peers.open_queues("ours")

    def send() -> int:
        return queues.send(name, BODY) if batch == 1 else queues.send_batch(name, [BODY] * batch)

    def receive() -> int:
        if not queues.cycle(read[place - 1], 100):
            time.sleep(0.01)
        return 1

    return warm(receive if place else send)
