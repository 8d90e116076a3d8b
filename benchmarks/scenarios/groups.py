"""FIFO groups: reads across many groups, with and without other messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.clients import repeat
from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue.models import Message

GROUPS = 10_000
LENGTH = 5
CHUNK = 50_000


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def grouped(bench: Any, peer: str, **options: Any) -> tuple[Any, str]:
    queues, name = bench.queue(peer, **options)
    if peer == "PGMQ":
        queues.cursor.execute("SELECT pgmq.create_fifo_index(%s)", [name])
    return queues, name


def send(bench: Any, queues: Any, name: str, groups: list[Any]) -> None:
    """Send a message for each entry of ``groups``."""
    for start in range(0, len(groups), CHUNK):
        chunk = groups[start : start + CHUNK]
        queues.send_grouped(name, bench.payload.take(len(chunk)), chunk)


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
    ours = partial(rate, bench, "ours")
    measures: dict[str, Measure] = {
        "ours, without groups": partial(ours, "read", [None] * len(groups)),
        "ours, read_grouped_rr": partial(ours, "read_grouped_rr", groups),
        "ours, read_grouped": partial(ours, "read_grouped", groups),
    }
    if bench.has("PGMQ"):
        measures["PGMQ, read_grouped_rr"] = partial(rate, bench, "PGMQ", "read_grouped_rr", groups)
    return measures


def rate(bench: Any, peer: str, operation: str, groups: list[Any], **options: Any) -> float:
    """Read 100 of these groups' messages at a time and archive them, in a new queue."""
    queues, name = grouped(bench, peer, **options)
    send(bench, queues, name, groups)
    bench.settle()
    # Ours reads everything: the first reads process the rechecks of all groups.
    seconds = bench.seconds if peer == "PGMQ" else 60
    count, started, ended = repeat(lambda: queues.cycle_grouped(name, operation), seconds)
    bench.drop(name)
    return count / (ended - started)


#: That the number of groups does not matter.
FLAT = tuple(
    Goal(f"{count:,} groups", "100 groups", at_least=0.8) for count in (1_000, 10_000, 100_000)
)


@scenario(
    "Read 100 in rounds and archive them, of few groups and of many",
    baseline="100 groups",
    goals=FLAT,
)
def groups_number(bench: Any) -> dict[str, Measure]:
    return rates_by_number(bench)


def rates_by_number(bench: Any, **options: Any) -> dict[str, Measure]:
    """The rate with few groups and with many, in queues with these options."""
    numbers = bench.amount((100, 1_000, 10_000), (100, 1_000, 10_000, 100_000))
    # The same number of messages in each case, with a second message behind each one read.
    total = numbers[-1] * 2

    def rate(count: int) -> float:
        queues, name = bench.queue("ours", **options)
        send(bench, queues, name, names(count) * (total // count))
        # The first reads process the new groups' rechecks, a thousand at a time.
        while bench.sql("SELECT 1 FROM pgqueue_recheck LIMIT 1"):
            Message.objects.archive(name, Message.objects.read(name))
        bench.settle()
        found = bench.rate(lambda: queues.cycle_grouped(name))
        bench.drop(name)
        return found

    return {f"{count:,} groups": partial(rate, count) for count in numbers}


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

    def measure(peer: str, behind: bool) -> Measure:
        queues, name = grouped(bench, peer)
        if behind:
            send(bench, queues, name, ["blocked"] * count)
            queues.hold(name, 1)

        def run() -> float:
            send(bench, queues, name, groups)
            bench.settle()
            return bench.rate(lambda: queues.cycle_grouped(name))

        return run

    return {
        f"{peer}{', behind' if behind else ''}": measure(peer, behind)
        for peer in bench.contestants("ours", "PGMQ")
        for behind in (False, True)
    }
