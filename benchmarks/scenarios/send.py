"""Sends of one, a hundred and a hundred thousand messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle
from typing import Any

from benchmarks import database, peers
from benchmarks.peers import bare
from benchmarks.scenarios import Goal, Measure, beside_pgmq, scenario
from django_pgqueue import bare as bare_queues
from django_pgqueue.engine.read.reading import fall_asleep

SENDERS = ("ours", "ours, bare cursor", "PGMQ")


@scenario(
    "Send one message, each its own commit",
    goals=beside_pgmq(1.0),
    webhooks=True,
)
def send_one(bench: Any) -> dict[str, Measure]:
    def measure(peer: str) -> Measure:
        queues, name = bench.queue(peer)
        bodies = cycle(bench.payload.bodies)
        return lambda: bench.rate(lambda: queues.send(name, next(bodies)))

    return bench.each(measure, *SENDERS)


@scenario(
    "Send a batch of 100, each batch its own commit",
    goals=beside_pgmq(1.0),
    webhooks=True,
)
def send_batch(bench: Any) -> dict[str, Measure]:
    def measure(peer: str) -> Measure:
        queues, name = bench.queue(peer)
        return lambda: bench.rate(lambda: queues.send_batch(name, bench.payload.take(100)))

    return bench.each(measure, *SENDERS)


@scenario(
    "Send 100,000 messages (quick: 20,000)",
    goals=(
        Goal("ours", "PGMQ", at_least=3.0),
        Goal("ours", "COPY into a plain table", at_least=0.5),
    ),
)
def send_bulk(bench: Any) -> dict[str, Measure]:
    bodies = bench.payload.take(bench.amount(20_000, 100_000))

    def ours() -> float:
        queues, name = bench.queue("ours")
        return rate(lambda: queues.send_batch(name, bodies))

    def pgmq() -> float:
        queues, name = bench.queue("PGMQ")
        starts = range(0, len(bodies), 100)
        return rate(lambda: [queues.send_batch(name, bodies[n : n + 100]) for n in starts])

    def rate(send: Any) -> float:
        started = time.monotonic()
        send()
        return len(bodies) / (time.monotonic() - started)

    measures: dict[str, Measure] = {
        "ours": ours,
        "COPY into a plain table": lambda: rate(lambda: bare.copy_in(bodies)),
    }
    if bench.has("PGMQ"):
        measures["PGMQ"] = pgmq
    return measures


@scenario(
    "16 producers send one message each time, with notifications, for a reader that always falls "
    "asleep again, and without",
    unit="commits/s",
    baseline="PGMQ, no NOTIFY",
    goals=(
        Goal("ours, NOTIFY", "ours, no NOTIFY", at_least=0.85),
        Goal("ours, NOTIFY", "PGMQ, no NOTIFY", at_least=0.85),
    ),
)
def send_notify(bench: Any) -> dict[str, Measure]:
    return notifying(bench, "ours, bare cursor", "PGMQ")


@scenario(
    "The same on a slow disk: each flush of the log waits 5 ms (commit_delay)",
    unit="commits/s",
    baseline="ours, no NOTIFY",
    goals=(Goal("ours, NOTIFY", "ours, no NOTIFY", at_least=0.85),),
)
def send_notify_slow(bench: Any) -> dict[str, Measure]:
    bench.on_close(bench.sql, "SELECT pg_reload_conf()")
    for name, value in (("commit_delay", 5000), ("commit_siblings", 0)):
        bench.sql(f"ALTER SYSTEM SET {name} = {value}")
        bench.on_close(bench.sql, f"ALTER SYSTEM RESET {name}")
    bench.sql("SELECT pg_reload_conf()")
    return notifying(bench, "ours, bare cursor")


def notifying(bench: Any, *senders: str) -> dict[str, Measure]:
    def measure(peer: str, notify: bool) -> Measure:
        _, name = bench.queue(peer, notify=notify)
        body = bench.payload.bodies[0]

        def run() -> float:
            with sleeper(name) if peer != "PGMQ" and notify else nullcontext():
                rate: float = bench.clients.run(
                    16, send_task, bench.seconds, peer=peer, queue=name, body=body
                )
            return rate

        return run

    return {
        f"{'PGMQ' if peer == 'PGMQ' else 'ours'}, {'NOTIFY' if notify else 'no NOTIFY'}": measure(
            peer, notify
        )
        for peer in bench.contestants(*senders)
        for notify in (True, False)
    }


@contextmanager
def sleeper(name: str) -> Iterator[None]:
    """A listener that falls asleep after each notification, so that the next send notifies."""
    stop = threading.Event()

    def sleep() -> None:
        with database.connect() as connection:
            connection.execute("LISTEN pgqueue")
            queue, heard = bare_queues.open_queue(connection, name), None
            while not stop.is_set():
                fall_asleep(queue, heard=heard, doubt=None)
                heard = [each.pid for each in connection.notifies(timeout=0.02, stop_after=1)]

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def send_task(peer: str, queue: str, body: Any, place: int) -> Any:
    queues = peers.open_queues(peer)
    return lambda: queues.send(queue, body)
