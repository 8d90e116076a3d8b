"""Kill a primary under load, promote its standby, and count the messages lost and repeated.

    python -m benchmarks.failover                          # a pair of servers, some two minutes
    python -m benchmarks.failover asynchronous --rounds 5
    python -m benchmarks.failover patroni patroni-node     # Patroni with etcd, where installed

Primary and standbys are temporary servers. Two senders and one consumer process list all of them in
their settings (``HOST = "a,b"``, ``target_session_attrs = "read-write"``), and nothing informs them
of the failover.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from benchmarks.failover import patroni
from benchmarks.failover.notes import Event, notes
from benchmarks.failover.servers import Pair, Servers, execute, pair, until

__all__ = ["CASES", "Outcome", "measure", "table"]

SENDERS = 2
QUEUES = ("transactional", "plain", "fast")


class Case(NamedTuple):
    name: str
    synchronous: bool
    #: Seconds before the kill during which the primary sends nothing to its standby.
    behind: float = 0.0
    #: What is killed in a Patroni cluster: the primary's "server", or its whole "node".
    patroni: str | None = None

    @property
    def servers(self) -> AbstractContextManager[Servers]:
        if self.patroni is None:
            return pair(synchronous=self.synchronous)
        return patroni.cluster(synchronous=self.synchronous, whole=self.patroni == "node")


CASES = [
    Case("asynchronous", False),
    Case("asynchronous-behind", False, behind=1.0),
    Case("synchronous", True),
    Case("synchronous-behind", True, behind=1.0),
    Case("patroni", False, patroni="server"),
    Case("patroni-synchronous", True, patroni="server"),
    Case("patroni-node", False, patroni="node"),
    Case("patroni-node-synchronous", True, patroni="node"),
]


class Outcome(NamedTuple):
    case: str
    #: Sends that returned an id, and how many of these the promoted server lacks.
    acknowledged: int
    lost: int
    #: Sends that raised an error, and how many of these the promoted server has.
    unknown: int
    unknown_kept: int
    #: Messages with two effects: of a transactional handler, of a plain handler, and outside of the
    #: database (a handler that completed twice).
    twice_transactional: int
    twice_plain: int
    twice_outside: int
    #: Seconds from the kill to the promoted server's first connection, and to the first send.
    promoted: float
    first_send: float
    #: Seconds to the first handled message; infinity if the consumer did not recover by itself.
    first_handled: float
    unlogged_usable: bool


def measure(case: Case, *, seconds: float = 4.0) -> Outcome:
    """Measure one failover, after ``seconds`` under load."""
    with case.servers as servers:
        servers.script(
            "from benchmarks.failover.consumers import EFFECTS\n"
            "call_command('migrate', verbosity=0)\n"
            "connection.cursor().execute(EFFECTS)\n"
            "for name in ('transactional', 'plain'): queue(name).create(visibility_timeout=5)\n"
            "queue('fast').create(unlogged=True)\n"
            "queue('fast').send('before')\n"
        )
        consumer = servers.start("django", "runconsumer", "--database-timeout", "5")
        senders = [servers.start("benchmarks.failover.sender", f"s{n}") for n in range(SENDERS)]
        until(lambda: any(event.what == "handled" for event in notes(servers.notes)))
        time.sleep(seconds)
        if case.behind:
            assert isinstance(servers, Pair)
            servers.hold_back(case.behind)
        servers.fail()
        promoted = time.monotonic()

        def after(what: str) -> list[Event]:
            return [e for e in notes(servers.notes) if e.what == what and e.at > promoted]

        until(lambda: after("sent"))
        try:
            until(lambda: len(after("handled")) > 20)
        except TimeoutError:
            print((servers.folder / "output").read_text()[-3000:], file=sys.stderr)
        if isinstance(servers, patroni.Cluster):
            servers.until_rejoined()
        (servers.notes / "stop").touch()
        for sender in senders:
            sender.wait(30)
        url = servers.url
        until(lambda: execute(url, "SELECT count(*) FROM pgqueue_live") == [(0,)])
        back = consumer.poll() is None
        consumer.terminate()
        consumer.wait(40)
        usable = unlogged_usable(servers)
        return judge(
            case.name,
            notes(servers.notes),
            execute(url, "SELECT body->>'op' FROM pgqueue_message"),
            execute(url, "SELECT queue, op FROM failover_effect"),
            servers.killed,
            promoted,
            back=back,
            unlogged_usable=usable,
        )


def unlogged_usable(servers: Servers) -> bool:
    """Whether an unlogged queue from before the failover is empty and works."""
    try:
        servers.script(
            "fast = queue('fast')\n"
            "assert fast.read() == []\n"
            "pk = fast.send('after')\n"
            "[message] = fast.read()\n"
            "assert fast.archive(message) == [pk]\n"
        )
    except subprocess.CalledProcessError:
        return False
    return True


def judge(
    case: str,
    events: list[Event],
    kept: list[tuple[Any, ...]],
    effects: list[tuple[Any, ...]],
    killed: float,
    promoted: float,
    *,
    back: bool,
    unlogged_usable: bool,
) -> Outcome:
    """Compare the processes' events with the promoted server's data."""
    there = {op for (op,) in kept}
    sent = {event.op for event in events if event.what == "sent"}
    unknown = {event.op for event in events if event.what == "unknown"}
    twice = [queue for (queue, _op), count in Counter(effects).items() if count > 1]
    runs = Counter(event.op for event in events if event.what == "handled")

    # A process reconnects after an error; an answer on the old connection may come late.
    noticed: dict[int, float] = {}
    for event in events:
        if event.what == "unknown":
            noticed.setdefault(event.pid, event.at)
    sends = [e.at for e in events if e.what == "sent" and e.at > noticed.get(e.pid, float("inf"))]
    handled = [e.at for e in events if e.what == "handled" and e.at > max(noticed.values())]

    return Outcome(
        case=case,
        acknowledged=len(sent),
        lost=len(sent - there),
        unknown=len(unknown),
        unknown_kept=len(unknown & there),
        twice_transactional=twice.count("transactional"),
        twice_plain=twice.count("plain"),
        twice_outside=sum(count > 1 for count in runs.values()),
        promoted=promoted - killed,
        first_send=min(sends) - killed,
        first_handled=min(handled) - killed if back and handled else float("inf"),
        unlogged_usable=unlogged_usable,
    )


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    head = [
        "| replication | sends acknowledged | lost | unknown (kept) | effects twice: transactional "
        "| plain | outside | promoted, s | first send, s | consumer back, s | unlogged usable |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = [
        f"| {o.case} | {o.acknowledged} | {o.lost} | {o.unknown} ({o.unknown_kept}) "
        f"| {o.twice_transactional} | {o.twice_plain} | {o.twice_outside} | {o.promoted:.2f} "
        f"| {o.first_send:.2f} | {o.first_handled:.2f} "
        f"| {'yes' if o.unlogged_usable else 'no'} |"
        for o in outcomes
    ]
    return "\n".join([*head, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=1, help="how often each (default: 1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before the kill")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    # SIGTERM ends the run like Ctrl-C, so that the servers are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    usual = [case.name for case in CASES if case.patroni is None]
    chosen = [case for case in CASES if case.name in (options.cases or usual)]
    if any(case.patroni for case in chosen) and (lacking := patroni.missing()):
        parser.error(f"install Debian's patroni, etcd-server, postgresql-15: no {lacking[0]}")
    outcomes = []
    for case in chosen:
        for number in range(options.rounds):
            print(f"{case.name}, round {number + 1} ...", file=sys.stderr, flush=True)
            outcomes.append(measure(case, seconds=options.seconds))
    print(json.dumps([o._asdict() for o in outcomes]) if options.json else table(outcomes))
    promised = all(not o.twice_transactional and o.unlogged_usable for o in outcomes)
    kept = all(not o.lost for o in outcomes if "synchronous" in o.case.replace("asynchronous", ""))
    return 0 if promised and kept else 1


if __name__ == "__main__":
    sys.exit(main())
