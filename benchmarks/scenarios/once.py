"""Sends with a unique key: many senders at once, batches, and what duplicates leave behind."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from django.db import connection

from benchmarks import database
from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue import bare
from django_pgqueue.models import Message

SENDERS = 100


@scenario(
    "A hundred senders at once, while two consumers end the messages",
    unit="ms, p99 of a send",
    baseline="a new key for each send",
    goals=(Goal("one key", "a new key for each send", at_most=3.0),),
)
def once(bench: Any) -> dict[str, Measure]:
    numbers = count()

    def measure(key: Callable[[], str], on_conflict: Any) -> Measure:
        _, name = bench.queue("ours")
        options = {"until": "done", "on_conflict": on_conflict}

        def send(queue: Any) -> None:
            bare.send(queue, 1, unique=key(), **options)

        return lambda: _p99(bench, name, send)

    return {
        "a new key for each send": measure(lambda: str(next(numbers)), "skip"),
        "one key": measure(lambda: "k", "skip"),
        "one key, replaced": measure(lambda: "k", "replace"),
    }


def _p99(bench: Any, name: str, send: Callable[[Any], None]) -> float:
    """The 99th percentile of the sends' durations in milliseconds."""
    took: list[float] = []
    stop = threading.Event()

    def consume(queue: Any) -> None:
        for message in bare.read(queue, qty=100):
            bare.archive(queue, message)

    def timed(queue: Any) -> None:
        began = time.perf_counter()
        send(queue)
        took.append((time.perf_counter() - began) * 1000)

    def repeat(step: Callable[[Any], None]) -> None:
        with database.connect() as session:
            queue = bare.open_queue(session, name)
            while not stop.is_set():
                step(queue)

    steps = [timed] * SENDERS + [consume] * 2
    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    stop.wait(bench.amount(2.0, 5.0, 10.0))
    stop.set()
    for thread in threads:
        thread.join()
    return statistics.quantiles(took, n=100)[98]


@scenario(
    "A batch of 1,000 messages with unique keys",
    unit="ms",
    baseline="no keys",
    goals=(Goal("new keys", "no keys", at_most=5.0),),
)
def once_batch(bench: Any) -> dict[str, Measure]:
    size, numbers = 1000, count()
    _, name = bench.queue("ours")

    def measure(keys: Callable[[], list[str] | None]) -> Measure:
        def send() -> float:
            unique = keys()
            began = time.perf_counter()
            Message.objects.send_batch(name, [1] * size, unique=unique)
            return (time.perf_counter() - began) * 1000

        return lambda: statistics.median(send() for _ in range(bench.amount(5, 20)))

    held = [f"held {number}" for number in range(size)]
    Message.objects.send_batch(name, held, unique=held, until="done")
    return {
        "no keys": measure(lambda: None),
        "new keys": measure(lambda: [f"key {next(numbers)}" for _ in range(size)]),
        "held keys": measure(lambda: held),
    }


@scenario(
    "100,000 duplicates (quick: 10,000): rows changed or deleted in the tables",
    unit="dead rows",
    baseline="an upsert for each send",
    goals=(Goal("ours", "an upsert for each send", at_most=0.01),),
    rounds=1,
)
def once_dead_rows(bench: Any) -> dict[str, Measure]:
    duplicates = bench.amount(10_000, 100_000)
    _, name = bench.queue("ours")
    bench.sql("CREATE TABLE IF NOT EXISTS bench_upsert (key text PRIMARY KEY, until timestamptz)")
    bench.on_close(bench.sql, "DROP TABLE bench_upsert")

    def ours() -> float:
        send = partial(Message.objects.send, name, 1, unique="k", until="done")
        return _dead(bench, lambda: [send() for _ in range(duplicates)])

    def upsert() -> float:
        """The usual way, ours until commit e43e370: a duplicate updates the key's row."""
        statement = (
            "INSERT INTO bench_upsert VALUES ('k', now()) ON CONFLICT (key) DO UPDATE "
            "SET until = bench_upsert.until"
        )
        return _dead(bench, lambda: [bench.sql(statement) for _ in range(duplicates)])

    return {"ours": ours, "an upsert for each send": upsert}


def _dead(bench: Any, act: Callable[[], object]) -> float:
    """How many row versions an action leaves dead."""
    sql = (
        "SELECT sum(n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables "
        "WHERE relname ~ '^(pgqueue_|bench_upsert)'"
    )

    def changed() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
        bench.sql("SELECT pg_stat_force_next_flush()")
        return int(bench.sql(sql)[0][0] or 0)

    before = changed()
    act()
    return changed() - before
