"""Kill a primary under load, promote its standby, and count what became of the messages.

    python -m benchmarks.failover                          # all four cases, some two minutes
    python -m benchmarks.failover asynchronous --rounds 5

Primary and standby are two servers of our own, connected by sockets, that are gone afterwards.
Two senders and one consumer process have both in their settings
(``HOST = "a,b"``, ``target_session_attrs = "read-write"``), and nothing tells them of the failover.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.failover.notes import Event, notes
from example_project.embedded_postgres.server import EmbeddedServer
from tests.standby import copy, two_servers

__all__ = ["CASES", "Outcome", "measure", "table"]

ROOT = Path(__file__).resolve().parents[2]
SENDERS = 2
QUEUES = ("transactional", "plain", "fast")


class Case(NamedTuple):
    name: str
    synchronous: bool
    #: For how many seconds before the kill the primary sends nothing to its standby.
    behind: float


CASES = [
    Case("asynchronous", False, 0.0),
    Case("asynchronous-behind", False, 1.0),
    Case("synchronous", True, 0.0),
    Case("synchronous-behind", True, 1.0),
]


class Outcome(NamedTuple):
    case: str
    #: Sends that returned an id, and those of them that the promoted server does not have.
    acknowledged: int
    lost: int
    #: Sends that ended with an error, and those of them that the promoted server has.
    unknown: int
    unknown_kept: int
    #: Messages with two rows of a transactional handler; with two of one that may run again; and
    #: messages whose handler ran to its end twice, as a mail would see it.
    twice_transactional: int
    twice_plain: int
    twice_outside: int
    #: Seconds from the kill to the promoted server's first connection, and to the first send.
    promoted: float
    first_send: float
    #: To the first handler that ran; infinity when the consumer did not come back by itself.
    first_handled: float
    unlogged_usable: bool


@dataclass
class Pair:
    """A primary and its standby, with the processes that use them."""

    primary: EmbeddedServer
    standby: EmbeddedServer
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "benchmarks.failover.settings",
            "FAILOVER_HOSTS": f"{self.primary.host},{self.standby.host}",
            "FAILOVER_NOTES": str(self.notes),
        }

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        return process

    def script(self, text: str) -> None:
        """Run a few lines of Python with Django set up, on the server that takes writes."""
        code = (
            "import django; django.setup()\n"
            "from django.core.management import call_command\n"
            "from django.db import connection\n"
            "from django_pgqueue import queue\n" + text
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=self.environment, check=True)


@contextmanager
def pair(*, synchronous: bool) -> Iterator[Pair]:
    settings = {
        "shared_buffers": "64MB",
        "max_connections": "50",
        "wal_retrieve_retry_interval": "200ms",
    }
    with (
        two_servers(settings) as (primary, standby),
        tempfile.TemporaryDirectory(prefix="pgqueue-over-") as folder,
    ):
        found = Pair(primary, standby, Path(folder))
        found.notes.mkdir()
        try:
            with primary:
                copy(primary, standby)
                with standby:
                    if synchronous:
                        # After the copy: the promoted server must not wait for its own standby.
                        execute(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
                        execute(primary, "SELECT pg_reload_conf()")
                    state = "SELECT sync_state FROM pg_stat_replication"
                    wanted = [("sync" if synchronous else "async",)]
                    until(lambda: execute(primary, state) == wanted)
                    yield found
        finally:
            for process in found.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def execute(server: EmbeddedServer, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until something is so, and return it. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds:g} seconds: {condition}")
        time.sleep(0.02)
    return found


def kill(server: EmbeddedServer) -> None:
    """kill -9 all processes of a server at once, as a power cut ends them."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)  # or it would see a child die, and restart
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == postmaster:
            os.kill(int(stat.parent.name), signal.SIGKILL)
    os.kill(postmaster, signal.SIGKILL)


def measure(case: Case, *, seconds: float = 4.0) -> Outcome:
    """One failover, after ``seconds`` under load."""
    with pair(synchronous=case.synchronous) as servers:
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
            [(walsender,)] = execute(servers.primary, "SELECT pid FROM pg_stat_replication")
            os.kill(walsender, signal.SIGSTOP)
            time.sleep(case.behind)
        killed = time.monotonic()
        kill(servers.primary)
        promote = [servers.standby.bin_dir / "pg_ctl", "promote", "--wait"]
        promote.append(f"-D{servers.standby.data}")
        subprocess.run(promote, check=True, capture_output=True, cwd="/", **servers.standby.user)
        promoted = time.monotonic()

        def after(what: str) -> list[Event]:
            return [e for e in notes(servers.notes) if e.what == what and e.at > promoted]

        until(lambda: after("sent"))
        try:
            until(lambda: len(after("handled")) > 20)
        except TimeoutError:
            print((servers.folder / "output").read_text()[-3000:], file=sys.stderr)
        (servers.notes / "stop").touch()
        for sender in senders:
            sender.wait(30)
        drained = "SELECT count(*) FROM pgqueue_live"
        until(lambda: execute(servers.standby, drained) == [(0,)])
        back = consumer.poll() is None
        consumer.terminate()
        consumer.wait(40)
        usable = unlogged_usable(servers)
        return judge(
            case.name,
            notes(servers.notes),
            execute(servers.standby, "SELECT body->>'op' FROM pgqueue_message"),
            execute(servers.standby, "SELECT queue, op FROM failover_effect"),
            killed,
            promoted,
            back=back,
            unlogged_usable=usable,
        )


def unlogged_usable(servers: Pair) -> bool:
    """Whether an unlogged queue from before is empty and works."""
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
    """Compare what the processes know with what the promoted server has."""
    there = {op for (op,) in kept}
    sent = {event.op for event in events if event.what == "sent"}
    unknown = {event.op for event in events if event.what == "unknown"}
    twice = [queue for (queue, _op), count in Counter(effects).items() if count > 1]
    runs = Counter(event.op for event in events if event.what == "handled")

    # A send that failed comes after the last that the old primary answered.
    noticed = min(e.at for e in events if e.what == "unknown")

    def first(what: str) -> float:
        moments = [e.at for e in events if e.what == what and e.at > noticed]
        return min(moments) - killed if moments else float("inf")

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
        first_send=first("sent"),
        first_handled=first("handled") if back else float("inf"),
        unlogged_usable=unlogged_usable,
    )


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
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
    # A SIGTERM ends as Ctrl-C does: with the servers stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes = []
    for case in CASES:
        for number in range(options.rounds if case.name in (options.cases or names) else 0):
            print(f"{case.name}, round {number + 1} ...", file=sys.stderr, flush=True)
            outcomes.append(measure(case, seconds=options.seconds))
    print(json.dumps([o._asdict() for o in outcomes]) if options.json else table(outcomes))
    promised = all(not o.twice_transactional and o.unlogged_usable for o in outcomes)
    kept = all(not o.lost for o in outcomes if o.case.startswith("synchronous"))
    return 0 if promised and kept else 1


if __name__ == "__main__":
    sys.exit(main())
