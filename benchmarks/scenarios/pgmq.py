"""PGMQ's functions on our tables, called as PGMQ's own are: by one client, a transaction a call."""

from __future__ import annotations

from typing import Any

from benchmarks.payloads import BODY
from benchmarks.scenarios import Goal, Measure, scenario

HOUR = 3600
OURS = "ours, PGMQ's functions"

#: What is measured, and the least ratio of ours to PGMQ's.
GOALS = {
    "send": 0.8,
    "send 100": 0.8,
    "read 100, archive": 1.1,
    "read 1, archive": 0.8,
    "read 1, delete": 0.8,
    "pop": 0.8,
    "behind delayed: read 100, archive": 10,
    "snapshot held: send 100, read, archive": 2.5,
}


@scenario(
    "PGMQ's functions; also behind 300,000 delayed messages, and after 100,000 under a snapshot",
    unit="send",
    goals=tuple(Goal(OURS, "PGMQ", at_least=least, unit=unit) for unit, least in GOALS.items()),
)
def pgmq_functions(bench: Any) -> dict[str, Measure]:
    """Messages a second of each operation."""
    return bench.each(lambda peer: lambda: measured(bench, peer), OURS, "PGMQ")


def measured(bench: Any, peer: str) -> dict[str, float]:
    queues, name = bench.queue(peer)
    body, bodies = BODY, [BODY] * 100
    backlog = bench.amount(2_000, 20_000)

    def settle_one(operation: str) -> int:
        queues.cursor.execute("SELECT * FROM pgmq.read(%s, 30, 1)", [name])
        [(msg_id, *_)] = queues.cursor.fetchall()
        queues.cursor.execute(f"SELECT pgmq.{operation}(%s, %s::bigint)", [name, msg_id])
        return len(queues.cursor.fetchall())

    def pop() -> int:
        queues.cursor.execute("SELECT * FROM pgmq.pop(%s)", [name])
        return len(queues.cursor.fetchall())

    def settled(step: Any, most: int | None = None) -> float:
        queues.cursor.execute("VACUUM ANALYZE")
        return bench.rate(step, most)

    def flow() -> int:
        queues.send_batch(name, bodies)
        return queues.cycle(name, 100)

    found = {
        "send": settled(lambda: queues.send(name, body)),
        "send 100": settled(lambda: queues.send_batch(name, bodies)),
    }
    reads = {
        "read 100, archive": lambda: queues.cycle(name, 100),
        "read 1, archive": lambda: settle_one("archive"),
        "read 1, delete": lambda: settle_one("delete"),
        "pop": pop,
    }
    for unit, step in reads.items():
        queues.cursor.execute("SELECT pgmq.purge_queue(%s)", [name])
        queues.fill(name, [body], backlog)
        found[unit] = settled(step, backlog - 100)

    queues.cursor.execute("SELECT pgmq.purge_queue(%s)", [name])
    queues.fill(name, [body], bench.amount(20_000, 300_000), delay=HOUR)
    queues.fill(name, [body], backlog)
    found["behind delayed: read 100, archive"] = settled(reads["read 100, archive"], backlog - 100)

    queues.cursor.execute("SELECT pgmq.purge_queue(%s)", [name])
    queues.cursor.execute("VACUUM ANALYZE")
    with queues.connect() as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_current_xact_id()")
        for _ in range(bench.amount(20, 1_000)):
            flow()
        found["snapshot held: send 100, read, archive"] = bench.rate(flow)
        holder.execute("ROLLBACK")
    bench.drop(name)
    return found
