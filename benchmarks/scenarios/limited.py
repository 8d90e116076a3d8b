"""Our limits: the share of a rate, the cost of a cap, and what blocked messages cost the others."""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import count
from typing import Any

from benchmarks import runs
from benchmarks.peers.limited import CAP
from benchmarks.scenarios import Goal, Measure, median_ms, scenario
from benchmarks.scenarios.depth import FLAT as SHARE
from benchmarks.scenarios.depth import under_snapshot
from benchmarks.scenarios.groups import FLAT, GROUPS, LENGTH, names, rate, rates_by_number, send
from benchmarks.scenarios.limits import rated, working
from django_pgqueue.models import Message

HOUR = 3600
SLOW = 2
NEWCOMERS = 200
RATES = {
    "the queue's rate": {"rate": f"{SLOW}/s", "burst": 1},
    "a group's rate": {"group_rate": f"{SLOW}/s", "group_burst": 1},
}


@scenario(
    f"A rate of {SLOW}/s with handlers of 0 and of 3 s",
    unit="share of the rate",
    baseline=None,
    rounds=1,
    goals=tuple(
        Goal(f"{of}, {handler} s", **limit)
        for of in RATES
        for handler in (0, 3)
        for limit in ({"at_least": 0.95}, {"at_most": 0, "unit": "starts over the rate"})
    ),
)
def limits_rate(bench: Any) -> dict[str, Measure]:
    seconds = bench.amount(6, 30, 300)
    bench.made_of = f"for {seconds} s"

    def measure(worker: Any, settings: dict[str, Any], handler: int) -> dict[str, float]:
        worker.settings["rate"] = settings
        with working(bench, worker, "rate", 2 * SLOW * seconds, handler):
            time.sleep(seconds)
        return rated(runs.read(worker.connection), SLOW, seconds)

    return {
        f"{of}, {handler} s": partial(measure, worker, settings, handler)
        for worker in bench.limited("ours").values()
        for of, settings in RATES.items()
        for handler in (0, 3)
    }


# The limit of a queue, what is in flight meanwhile, and how many clients read.
WHOLE = ((4, 0, 8), (100, 0, 1), (100, 90, 8), (1_000, 900, 8), (10_000, 9_000, 8))


@scenario("Read 1 and archive it, in a queue with a limit", baseline="100, 0 in flight, 1 client")
def limits_whole(bench: Any) -> dict[str, Measure]:
    def measure(limit: int, in_flight: int, clients: int) -> float:
        queues, name = bench.queue("ours", limit=limit)
        queues.fill(name, bench.payload.bodies, in_flight + bench.amount(5_000, 50_000))
        Message.objects.read(name, qty=in_flight, vt=HOUR) if in_flight else None
        bench.settle()
        done: float = bench.clients.run(clients, one_of_many, bench.seconds, queue=name)
        bench.drop(name)
        return done

    return {
        f"{limit:,}, {in_flight:,} in flight, {clients} client{'s' * (clients > 1)}": partial(
            measure, limit, in_flight, clients
        )
        for limit, in_flight, clients in WHOLE
    }


def one_of_many(queue: str, place: int) -> Any:
    """Wait for a message, and archive it."""

    def step() -> int:
        while not (messages := Message.objects.read(queue)):
            """The other clients have all that the limit allows."""
        return len(Message.objects.archive(queue, messages))

    return step


@scenario(
    f"Read 100 of 10,000 groups with 5 messages each and archive them: {CAP} of a group at once, "
    "and one",
    baseline="one at once",
    goals=(Goal(f"{CAP} at once", "one at once", at_least=0.5),),
)
def limits_groups(bench: Any) -> dict[str, Measure]:
    measure = partial(rate, bench, "ours", "read", names(GROUPS) * bench.amount(2, LENGTH))
    return {"one at once": measure, f"{CAP} at once": partial(measure, group_limit=CAP)}


@scenario(
    f"Read 100 of few groups and of many and archive them, {CAP} of a group at once",
    baseline="100 groups",
    goals=FLAT,
)
def limits_groups_number(bench: Any) -> dict[str, Measure]:
    return rates_by_number(bench, group_limit=CAP)


@scenario(
    "Read a newcomer behind 1,000,000 blocked messages of one group (quick: 20,000)",
    unit="ms",
    baseline="none",
    goals=(Goal("behind", "none", at_most=1.25),),
)
def limits_blocked(bench: Any) -> dict[str, Measure]:
    blocked = bench.amount(20_000, 1_000_000)
    bench.made_of = f"{blocked:,} blocked messages; medians of {NEWCOMERS} reads"
    groups = map("newcomer {}".format, count())

    def measure(behind: int) -> Measure:
        queues, name = bench.queue("ours", group_limit=CAP)
        send(bench, queues, name, ["blocked"] * behind)
        while Message.objects.read(name, qty=CAP, vt=HOUR):
            """All that the limit allows."""

        def one() -> float:
            group = next(groups)
            send(bench, queues, name, [group])
            read: list[Message] = []
            took = median_ms(lambda: read.extend(Message.objects.read(name)), 1)
            [message] = read
            assert message.group == group
            Message.objects.archive(name, message)
            return took

        def run() -> float:
            bench.settle()
            return statistics.median(one() for _ in range(NEWCOMERS))

        return run

    return {"none": measure(0), "behind": measure(blocked)}


# A group's rows have an old version for each message it had under the snapshot, so the number of
# groups matters.
SNAPSHOTS: dict[str, tuple[int, dict[str, int]]] = {
    f"{number:,} groups, {label}": (number, settings)
    for number in (1_000, GROUPS)
    for label, settings in (("one at once", {}), (f"{CAP} at once", {"group_limit": CAP}))
}


@scenario(
    "Send, read and archive 100 of many groups in turn, while a snapshot is held open",
    baseline=f"{GROUPS:,} groups, one at once, clean",
    goals=tuple(
        goal
        for label in SNAPSHOTS
        for goal in (
            Goal(f"{label}, at the end", f"{label}, clean", at_least=0.8),
            Goal(f"{label}, at the end", at_least=0.8, unit=SHARE),
        )
    ),
)
def limits_snapshot(bench: Any) -> dict[str, Measure]:
    return {
        label: measure
        for start, (number, settings) in SNAPSHOTS.items()
        for label, measure in under_snapshot(
            bench, start, "ours", names(number), **settings
        ).items()
    }
