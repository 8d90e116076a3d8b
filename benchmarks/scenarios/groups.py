"""FIFO groups: reads across many groups, with and without other messages."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.clients import repeat
from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue.models import Message

GROUPS = 10_000
LENGTH = 5
HOUR = 3600
CHUNK = 50_000


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def send(bench: Any, name: str, groups: list[str | None]) -> None:
    """Send a message for each entry of ``groups``, to our queue."""
    for start in range(0, len(groups), CHUNK):
        chunk = groups[start : start + CHUNK]
        Message.objects.send_batch(name, bench.payload.take(len(chunk)), group=chunk)


def send_pgmq(bench: Any, queues: Any, name: str, groups: list[str]) -> None:
    for start in range(0, len(groups), CHUNK):
        chunk = groups[start : start + CHUNK]
        queues.cursor.execute(
            "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])",
            [
                name,
                [json.dumps(body) for body in bench.payload.take(len(chunk))],
                [json.dumps({"x-pgmq-group": group}) for group in chunk],
            ],
        )


def cycle(name: str, operation: str = "read_grouped_rr") -> int:
    messages = getattr(Message.objects, operation)(name, qty=100)
    return len(Message.objects.archive(name, messages)) if messages else 0


def cycle_pgmq(queues: Any, name: str) -> int:
    queues.cursor.execute("SELECT * FROM pgmq.read_grouped_rr(%s, 30, 100)", [name])
    ids = [row[0] for row in queues.cursor.fetchall()]
    queues.cursor.execute("SELECT * FROM pgmq.archive(%s, %s::bigint[])", [name, ids])
    return len(queues.cursor.fetchall())


@scenario(
    "Read 100 of 10,000 groups with 5 messages each and archive them (quick: 2 messages)",
    baseline="PGMQ, read_grouped_rr",
    goals=(
        Goal("ours, read_grouped_rr", "PGMQ, read_grouped_rr", at_least=20),
        Goal("ours, read_grouped_rr", "ours, without groups", at_least=1 / 3),
        Goal("ours, read_grouped", "ours, without groups", at_least=1 / 3),
    ),
)
def groups_read(bench: Any) -> dict[str, Measure]:
    groups = names(GROUPS) * bench.amount(2, LENGTH)

    def ours(operation: str, groups: list[Any]) -> Measure:
        def run() -> float:
            _, name = bench.queue("ours")
            send(bench, name, groups)
            bench.settle()
            # Reads everything: the first reads process the rechecks of all groups.
            count, started, ended = repeat(lambda: cycle(name, operation), 60)
            bench.drop(name)
            return count / (ended - started)

        return run

    def pgmq() -> float:
        queues, name = bench.queue("PGMQ")
        queues.cursor.execute("SELECT pgmq.create_fifo_index(%s)", [name])
        send_pgmq(bench, queues, name, groups)
        bench.settle()
        rate = bench.rate(lambda: cycle_pgmq(queues, name))
        bench.drop(name)
        return rate

    measures: dict[str, Measure] = {
        "ours, without groups": ours("read", [None] * len(groups)),
        "ours, read_grouped_rr": ours("read_grouped_rr", groups),
        "ours, read_grouped": ours("read_grouped", groups),
    }
    if bench.has("PGMQ"):
        measures["PGMQ, read_grouped_rr"] = pgmq
    return measures


@scenario(
    "Read 100 in rounds and archive them, of few groups and of many",
    baseline="100 groups",
    goals=tuple(
        Goal(f"{count:,} groups", "100 groups", at_least=0.8) for count in (1_000, 10_000, 100_000)
    ),
)
def groups_number(bench: Any) -> dict[str, Measure]:
    numbers = bench.amount((100, 1_000, 10_000), (100, 1_000, 10_000, 100_000))
    # The same number of messages in each case, with a second message behind each one read.
    total = numbers[-1] * 2

    def measure(count: int) -> Measure:
        def run() -> float:
            _, name = bench.queue("ours")
            send(bench, name, names(count) * (total // count))
            # The first reads process the new groups' rechecks, a thousand at a time.
            while bench.sql("SELECT 1 FROM pgqueue_recheck LIMIT 1"):
                Message.objects.archive(name, Message.objects.read(name))
            bench.settle()
            rate = bench.rate(lambda: cycle(name))
            bench.drop(name)
            return rate

        return run

    return {f"{count:,} groups": measure(count) for count in numbers}


@scenario(
    "Read 100 of 10,000 groups in rounds and archive them, behind 100,000 messages of one blocked "
    "group (quick: 20,000, full: 1,000,000)",
    baseline="ours",
    goals=(
        Goal("ours, behind", "ours", at_least=0.8),
        Goal("PGMQ, behind", "PGMQ", at_least=0.8),
    ),
)
def groups_blocked(bench: Any) -> dict[str, Measure]:
    count = bench.amount(20_000, 100_000, 1_000_000)
    groups = names(bench.amount(1_000, GROUPS)) * LENGTH

    def ours(behind: bool) -> Measure:
        _, name = bench.queue("ours")
        if behind:
            send(bench, name, ["blocked"] * count)
            Message.objects.read(name, vt=HOUR)

        def run() -> float:
            send(bench, name, groups)
            bench.settle()
            return bench.rate(lambda: cycle(name))

        return run

    def pgmq(behind: bool) -> Measure:
        queues, name = bench.queue("PGMQ")
        queues.cursor.execute("SELECT pgmq.create_fifo_index(%s)", [name])
        if behind:
            send_pgmq(bench, queues, name, ["blocked"] * count)
            queues.hold(name, 1)

        def run() -> float:
            send_pgmq(bench, queues, name, groups)
            bench.settle()
            return bench.rate(lambda: cycle_pgmq(queues, name))

        return run

    measures = {"ours": ours(False), "ours, behind": ours(True)}
    if bench.has("PGMQ"):
        measures |= {"PGMQ": pgmq(False), "PGMQ, behind": pgmq(True)}
    return measures
