"""Operations on a queue in a database of many queues."""

from __future__ import annotations

import itertools
import random
import statistics
from functools import partial
from typing import Any

from django.db import connection, connections, transaction

from benchmarks import peers
from benchmarks.payloads import BODY
from benchmarks.scenarios import Goal, Measure, median_ms, scenario
from django_pgqueue import queue
from django_pgqueue.admin import overview
from django_pgqueue.models import Message, Queue

CLIENTS = 8
DRAWN = 20
FEW = 5


@scenario(
    "Operations in a database of 1, 100 and 1,000 queues (quick: 1 and 20, full: up to 10,000)",
    unit="ms, create",
    baseline=None,
    rounds=1,
)
def queues_number(bench: Any) -> dict[str, Measure]:
    """Medians of operations on queues drawn at random.

    ``new connection`` is the first send of a session, which has read no table's definition yet.
    ``after a creation`` is the first statement of a session that has sent to every queue, after
    another session has created one.
    """
    names: list[str] = []
    draw = random.Random(1)
    sizes = bench.amount((1, 20), (1, 100, 1_000), (1, 100, 10_000))
    return {f"{size:,}": partial(grown, bench, names, size, draw) for size in sizes}


def grown(bench: Any, names: list[str], size: int, draw: random.Random) -> dict[str, float]:
    took = []
    while len(names) < size:
        took.append(median_ms(lambda: names.append(bench.queue("ours")[1]), 1))
        if len(names) % 50 == 0:
            bench.tell(f"queue {len(names)} of {size}")
    return {"ms, create": statistics.median(took[-DRAWN:]), **measure(bench, names, draw)}


def measure(bench: Any, names: list[str], draw: random.Random) -> dict[str, float]:
    def some() -> Any:
        return queue(draw.choice(names))

    def reading() -> None:
        chosen = some()
        [message] = chosen.read()
        chosen.archive(message)
        chosen.send({"n": 1})

    def connecting() -> None:
        connection.close()
        connection.ensure_connection()

    def first_send() -> float:
        connecting()
        return median_ms(lambda: some().send({"n": 1}), 1)

    def after_a_creation() -> float:
        new = f"new-{draw.random()}"
        Message.objects.using("other").create_queue(new)
        bench.on_close(Message.objects.drop_queue, new)
        return median_ms(lambda: value("SELECT 1"), 1)

    def locks(**look_up: Any) -> float:
        with transaction.atomic():
            Message.objects.get(**look_up)
            return value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")

    bench.sql("ANALYZE")
    connecting()
    for name in names:
        queue(name).send({"n": 1})
    after = statistics.median(after_a_creation() for _ in range(FEW))
    connections["other"].close()
    memory = value("SELECT sum(total_bytes) / 1e6 FROM pg_backend_memory_contexts")
    chosen = Queue.objects.get(name=draw.choice(names))
    pk = queue(chosen.name).send({"n": 1})
    figures = {
        "ms, a statement after a creation": after,
        "MB, memory of that session": memory,
        "ms, send, new connection": statistics.median(first_send() for _ in range(FEW)),
        "ms, send": median_ms(lambda: some().send({"n": 1}), DRAWN),
        "ms, read, archive, send": median_ms(reading, DRAWN),
        "ms, metrics of one": median_ms(lambda: some().metrics(), DRAWN),
        "ms, metrics_all": median_ms(Message.objects.metrics_all, FEW),
        "ms, the admin's overview": median_ms(
            lambda: overview.look(list(Queue.objects.all())), FEW
        ),
        "ms, get(queue, pk)": median_ms(lambda: Message.objects.get(queue=chosen, pk=pk), FEW),
        "ms, get(pk)": median_ms(lambda: Message.objects.get(pk=pk), FEW),
    }
    connecting()
    return {
        **figures,
        "ms, first get(pk) of a session": median_ms(lambda: Message.objects.get(pk=pk), 1),
        "locks of get(queue, pk)": locks(queue=chosen, pk=pk),
        "locks of get(pk)": locks(pk=pk),
        "tables and indexes": value("SELECT count(*) FROM pg_class WHERE relname ~ '^pgq'"),
        "MB, database": value("SELECT pg_database_size(current_database()) / 1e6"),
    }


def value(statement: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return float(cursor.fetchone()[0])


def make(bench: Any, peer: str, each: int = 0) -> list[str]:
    """Create a thousand queues (quick: 100) with ``each`` messages; returns their names."""
    names = []
    for number in range(count := bench.amount(100, 1000)):
        if number % 50 == 0:
            bench.tell(f"{peer}: queue {number} of {count}")
        queues, name = bench.queue(peer)
        queues.fill(name, bench.payload.bodies, each)
        names.append(name)
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
        names = make(bench, peer)
        measures[f"{peer}, one"] = measure(peer, names[:1])
        measures[f"{peer}, many"] = measure(peer, names)
    bench.settle()
    return measures


def round_task(peer: str, names: list[str], place: int) -> Any:
    """Send, read and archive 10 in each queue in turn; each client has its own queues."""
    queues = peers.open_queues(peer)
    bodies = [BODY] * 10
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
    for peer in bench.contestants("ours", "PGMQ"):
        make(bench, peer, bench.amount(200, 1000, 10_000))
    bench.settle()
    measures: dict[str, Measure] = {"ours": lambda: median_ms(Message.objects.metrics_all, 1)}
    if bench.has("PGMQ"):
        cursor = peers.open_queues("PGMQ").cursor
        every = "SELECT * FROM pgmq.metrics_all()"
        measures["PGMQ"] = lambda: median_ms(lambda: cursor.execute(every).fetchall(), 1)
    return measures
