"""Kills a primary under load: counts lost and repeated messages, and times the recovery.

Two senders and one consumer process have every server in their settings (``HOST = "a,b"``,
``target_session_attrs = "read-write"``), and nothing informs them of the failover.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from benchmarks import notes
from benchmarks.failover import patroni
from benchmarks.failover.servers import Pair, Servers, execute, pair, until
from benchmarks.scenarios import Goal, Measure, scenario

SENDERS = 2
QUEUES = ("failover-transactional", "failover-plain")
PREPARE = """
from benchmarks.consumers import EFFECTS
call_command("migrate", verbosity=0)
connection.cursor().execute(EFFECTS)
for name in {queues}: queue(name).create(visibility_timeout=5)
queue("fast").create(unlogged=True)
queue("fast").send("before")
"""
#: Asserts that an unlogged queue from before the failover is empty and works.
UNLOGGED = """
fast = queue("fast")
assert fast.read() == []
pk = fast.send("after")
[message] = fast.read()
assert fast.archive(message) == [pk]
"""


class Event(NamedTuple):
    what: str
    op: str
    at: float
    pid: int


def goals(*cases: str) -> tuple[Goal, ...]:
    never = {"twice, transactional": cases, "lost": [c for c in cases if c.startswith("sync")]}
    return tuple(Goal(case, at_most=0, unit=unit) for unit, of in never.items() for case in of)


@scenario(
    "A primary is killed, and its standby promoted",
    unit="s, first send",
    baseline=None,
    goals=goals("asynchronous", "asynchronous, behind", "synchronous", "synchronous, behind"),
)
def failover_pair(bench: Any) -> dict[str, Measure]:
    """Behind: for a second before the kill, the primary sends nothing to its standby."""
    load = bench.amount(1, 4)
    return {
        f"{name}{', behind' if behind else ''}": partial(
            failover, partial(pair, synchronous=name == "synchronous"), load, behind
        )
        for name in ("asynchronous", "synchronous")
        for behind in (0, 1)
    }


@scenario(
    "A primary of Patroni's is killed: its server, or its whole node",
    unit="s, first send",
    baseline=None,
    goals=goals(
        "asynchronous, server", "asynchronous, node", "synchronous, server", "synchronous, node"
    ),
)
def failover_patroni(bench: Any) -> dict[str, Measure]:
    if lacking := patroni.missing():
        raise RuntimeError(
            f"{lacking[0]} is missing: install Debian's patroni, etcd-server, postgresql-15"
        )
    load = bench.amount(1, 4)
    return {
        f"{name}, {killed}": partial(
            failover,
            partial(patroni.cluster, synchronous=name == "synchronous", whole=killed == "node"),
            load,
        )
        for name in ("asynchronous", "synchronous")
        for killed in ("server", "node")
    }


def failover(
    start: Callable[[], AbstractContextManager[Servers]], load: float, behind: float = 0
) -> dict[str, float]:
    """One failover, after ``load`` seconds; the standby misses the last ``behind`` of them."""
    with start() as servers:
        servers.script(PREPARE.format(queues=QUEUES))
        consumer = servers.start("django", "runconsumer", *QUEUES, "--database-timeout", "5")
        senders = [
            servers.start("benchmarks.failover.sender", f"s{number}", str(servers.stop))
            for number in range(SENDERS)
        ]

        def events(what: str, since: float = 0) -> list[Event]:
            found = (Event(*fields) for fields in notes.read(servers.notes))
            return [event for event in found if event.what == what and event.at > since]

        until(lambda: events("handled"))
        time.sleep(load)
        if isinstance(servers, Pair) and behind:
            servers.hold_back(behind)
        servers.fail()
        promoted = time.monotonic()
        until(lambda: events("sent", since=promoted))
        try:
            until(lambda: len(events("handled", since=promoted)) > 20)
        except AssertionError:
            said = (servers.folder / "output").read_text()[-3000:]
            raise RuntimeError(f"{said}\nthe consumer did not come back") from None
        if isinstance(servers, patroni.Cluster):
            servers.until_rejoined()
        servers.stop.touch()
        for sender in senders:
            sender.wait(30)
        url = servers.url
        until(lambda: execute(url, "SELECT count(*) FROM pgqueue_live") == [(0,)])
        consumer.terminate()
        consumer.wait(40)
        servers.script(UNLOGGED)
        there = {op for (op,) in execute(url, "SELECT body->>'op' FROM pgqueue_message")}
        effects = execute(url, "SELECT queue, op FROM failover_effect")
        sent, unknown, handled = map(events, ("sent", "unknown", "handled"))
        # A process reconnects after its first error; an answer on the old connection may come late.
        noticed = {event.pid: event.at for event in reversed(unknown)}
        anew = [e.at for e in sent if e.at > noticed.get(e.pid, float("inf"))]
        back = [e.at for e in handled if e.at > max(noticed.values())]
        return {
            **counted(sent, unknown, handled, there, effects),
            "s, promoted": promoted - servers.killed,
            "s, first send": min(anew) - servers.killed,
            "s, consumer back": min(back) - servers.killed,
        }


def counted(
    sent: list[Event],
    unknown: list[Event],
    handled: list[Event],
    there: set[str],
    effects: list[tuple[Any, ...]],
) -> dict[str, float]:
    """Compare the processes' events with the promoted server's data.

    A send is unknown if it raised an error. A handler has an effect in its transaction, and one
    outside of the database; both happen twice if it completes twice.
    """
    acknowledged, failed = ({event.op for event in events} for events in (sent, unknown))
    twice = [queue for (queue, _op), count in Counter(effects).items() if count > 1]
    runs = Counter(event.op for event in handled)
    return {
        "sends acknowledged": len(acknowledged),
        "lost": len(acknowledged - there),
        "unknown": len(failed),
        "unknown, kept": len(failed & there),
        **{f"twice, {queue.removeprefix('failover-')}": twice.count(queue) for queue in QUEUES},
        "twice, outside": sum(count > 1 for count in runs.values()),
    }
