"""The cost of a queue among many: creating, sending, reading, metrics, the admin, and get(pk).

    python -m benchmarks.queues                    # 1, 100 and 10,000 queues
    python -m benchmarks.queues --sizes 1 100 1000

Each figure is the median, in milliseconds, of operations on queues drawn at random. ``new
connection`` is the first send of a session, which has read no table's definition yet. ``after a
creation`` is the first statement of a session that has sent to every queue, after another session
has made one.
The server is one of our own that is gone afterwards, or DATABASE_URL's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import django

from benchmarks import database

DRAWN = 20
FEW = 5


def timed(operation: Callable[[], Any], times: int) -> float:
    """The median duration of an operation, in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        operation()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def measure(count: int, creating: float, draw: random.Random) -> dict[str, float]:
    """The figures with ``count`` queues, whose creation took ``creating`` each."""
    from django.db import connection, connections, transaction

    from django_pgqueue import queue
    from django_pgqueue.admin import overview
    from django_pgqueue.models import Message, Queue

    def some() -> Any:
        return queue(f"queue-{draw.randrange(count)}")

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
        return timed(lambda: some().send({"n": 1}), 1)

    def value(statement: str) -> float:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return float(cursor.fetchone()[0])

    def after_a_creation() -> float:
        Message.objects.using("other").create_queue(f"new-{draw.random()}")
        return timed(lambda: value("SELECT 1"), 1)

    def locks(**look_up: Any) -> float:
        with transaction.atomic():
            Message.objects.get(**look_up)
            return value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    connecting()
    for number in range(count):
        queue(f"queue-{number}").send({"n": 1})
    after = statistics.median(after_a_creation() for _ in range(FEW))
    connections["other"].close()
    memory = value("SELECT sum(total_bytes) / 1e6 FROM pg_backend_memory_contexts")
    chosen = Queue.objects.get(name=f"queue-{draw.randrange(count)}")
    pk = queue(chosen.name).send({"n": 1})
    figures = {
        "create": creating,
        "a statement after a creation": after,
        "memory of that session, MB": memory,
        "send, new connection": statistics.median(first_send() for _ in range(FEW)),
        "send": timed(lambda: some().send({"n": 1}), DRAWN),
        "read, archive, send": timed(reading, DRAWN),
        "metrics of one": timed(lambda: some().metrics(), DRAWN),
        "metrics_all": timed(Message.objects.metrics_all, FEW),
        "the admin's overview": timed(lambda: overview.look(list(Queue.objects.all())), FEW),
        "get(queue, pk)": timed(lambda: Message.objects.get(queue=chosen, pk=pk), FEW),
        "get(pk)": timed(lambda: Message.objects.get(pk=pk), FEW),
    }
    connecting()
    figures["first get(pk) of a session"] = timed(lambda: Message.objects.get(pk=pk), 1)
    figures["locks of get(queue, pk)"] = locks(queue=chosen, pk=pk)
    figures["locks of get(pk)"] = locks(pk=pk)
    figures["tables and indexes"] = value("SELECT count(*) FROM pg_class WHERE relname ~ '^pgq'")
    figures["database, MB"] = value("SELECT pg_database_size(current_database()) / 1e6")
    return figures


def table(results: dict[int, dict[str, float]]) -> str:
    """The figures as a Markdown table: a column per number of queues."""
    rows = [
        "| | " + " | ".join(f"{count:,}" for count in results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    for name in next(iter(results.values())):
        cells = (figures[name] for figures in results.values())
        rows.append(
            f"| {name} | "
            + " | ".join(f"{c:,.0f}" if c >= 10 else f"{c:.1f}" for c in cells)
            + " |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 100, 10_000])
    options = parser.parse_args()
    if min(options.sizes) < 1:
        parser.error("--sizes must be 1 or more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: dict[int, dict[str, float]] = {}
    with database.database():
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.admin_settings"
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        from django_pgqueue.models import Message

        call_command("migrate", verbosity=0)
        made = 0
        try:
            for count in sorted(set(options.sizes)):
                took: list[float] = []
                while made < count:
                    name = f"queue-{made}"
                    took.append(timed(lambda name=name: Message.objects.create_queue(name), 1))
                    made += 1
                    if made % 100 == 0:
                        last = statistics.median(took[-DRAWN:])
                        print(f"{made} queues, {last:.0f} ms each", file=sys.stderr, flush=True)
                creating = statistics.median(took[-DRAWN:])
                results[count] = measure(count, creating, random.Random(1))
        except KeyboardInterrupt:
            print("Interrupted: what was measured follows.", file=sys.stderr)
        finally:
            connections.close_all()
    if results:
        print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
