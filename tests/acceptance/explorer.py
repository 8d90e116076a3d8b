"""Every interleaving of the statements of two or three sessions, against a real server.

    python -m tests.acceptance.explorer                    # all scenarios, to the end
    python -m tests.acceptance.explorer groups --most 500  # some, at most 500 interleavings of each
    python -m tests.acceptance.explorer promote --switches 3
    python -m tests.acceptance.explorer --list

Each session is a thread with a connection of its own that runs real operations. It stops before
each statement and before each commit, until it is chosen; the choices are enumerated, depth first.
A session that waits for a lock is chosen when the server lets it go on. Time is a session too: it
moves the end of leases into the past. After each step, and after a drain at the end:

- every message that was sent and committed is in one place: live, or archived, or deleted;
- no two deliveries have the same receipt;
- a settlement succeeds only by the receipt of the message's last delivery, and once;
- a message of a group is settled only when those before it are, or were leased in the same read;
- no read exceeds a limit or a rate, and no message is in two slots;
- at the end all leases run out, and everything is read and archived.

The bounds: the sessions' scripts below, to their ends; what happens inside of one statement is the
server's. ``promote`` and ``change`` have too many interleavings to run them all: there, those in
which a session is left at most two or three times while it could go on (Musuvathi and Qadeer,
"Iterative context bounding for systematic testing of multithreaded programs", 2007: few such
switches show most errors). ``--switches`` sets that bound for every scenario. Exits with 1, and
prints the interleaving, when an invariant breaks.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from tests.servers import one_server

__all__ = ["SCENARIOS", "Broken", "Scenario", "explore"]

ALIASES = ("default", "a", "b", "c")
#: Seconds after which a step counts as hung.
PATIENCE = 30.0


class Broken(Exception):
    """An invariant broke."""


@dataclass
class Delivered:
    """A delivery to one of the sessions."""

    message: Any
    #: The position in the order of all events.
    number: int
    #: Messages that were live before the read.
    before: frozenset[int]


@dataclass
class History:
    """The results of all sessions, in the order of steps."""

    deliveries: list[Delivered] = field(default_factory=list)
    settled: dict[int, str] = field(default_factory=dict)
    sent: dict[int, str | None] = field(default_factory=dict)
    #: The limits and rates of the queue that are in force.
    limits: dict[str, Any] = field(default_factory=dict)
    #: The messages of each group that were in flight at the last step; "": of the queue.
    in_flight: Counter[str] = field(default_factory=Counter)
    #: How often enough time passed for another start at each rate.
    passed: int = 0
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


class Session:
    """A thread that runs a script, one statement at a time."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.name = "orders"
        self.history = History()
        self.world: World
        self.waiting = threading.Event()
        self.done = True
        self.label = ""
        self.pid = 0
        self._go = threading.Semaphore(0)
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._connect).result()

    def _connect(self) -> None:
        from django.db import connections

        from django_pgqueue import queue

        connection = connections[self.alias]
        connection.ensure_connection()
        self.pid = connection.connection.info.backend_pid
        for name in ("dead", *queues()):
            queue(name, using=self.alias).drained()  # warms the process's cache of the queue
        connection.execute_wrappers.append(self._before_statement)

    def _before_statement(self, execute: Any, sql: str, *rest: Any) -> Any:
        self.gate(" ".join(sql.split())[:60])
        return execute(sql, *rest)

    def gate(self, label: str) -> None:
        """Wait until this session is chosen."""
        self.label = label
        self.waiting.set()
        self._go.acquire()

    def begin(self, script: Script) -> Future[None]:
        self.done = False
        self.waiting.clear()
        return self._thread.submit(self._run, script)

    def _run(self, script: Script) -> None:
        try:
            script(self)
        finally:
            self.done = True
            self.waiting.set()

    def let_go(self) -> None:
        self.waiting.clear()
        self._go.release()

    def close(self) -> None:
        from django.db import connections

        self._thread.submit(connections.close_all)
        self._thread.shutdown()

    # The steps of scripts

    @property
    def queue(self) -> Any:
        from django_pgqueue import queue

        return queue(self.name, using=self.alias)

    def send(self, body: Any, **options: Any) -> None:
        pk = self.queue.send(body, **options)
        self.history.sent[pk] = options.get("group")

    def read(self, how: str = "read", **options: Any) -> list[Any]:
        before = self.world.live()
        messages = getattr(self.queue, how)(vt=600, **options)
        number = self.history.tick()
        for message in messages:
            self.history.deliveries.append(Delivered(message, number, before))
            same = [d for d in self.history.deliveries if d.message.receipt == message.receipt]
            if len(same) > 1:
                raise Broken(f"two deliveries have the receipt {message.receipt}")
        return messages

    def settle(self, operation: str, messages: Sequence[Any], given: Any = None) -> list[int]:
        """Run an operation on messages that were read, and check its result."""
        if not messages:
            return []
        receipts = [message.receipt for message in messages]
        done = getattr(self.queue, operation)(receipts if given is None else given)
        for message in messages:
            if message.id in done:
                self._judge(operation, message)
        return list(done)

    def _judge(self, operation: str, message: Any) -> None:
        of_message = [d for d in self.history.deliveries if d.message.id == message.id]
        mine = next(d for d in of_message if d.message.receipt == message.receipt)
        # A delivery whose read has not returned yet shows in the next one's delivery count.
        if any(d.message.receipt.read_at > message.receipt.read_at for d in of_message):
            raise Broken(f"{operation} by {message.receipt}, which is not the last delivery")
        if operation not in ("archive", "delete", "fail"):
            return
        if message.id in self.history.settled:
            raise Broken(f"message {message.id} was settled twice")
        self.history.settled[message.id] = operation
        if message.group is None or operation == "fail" or self.history.limits:
            return
        together = {
            d.message.id
            for d in self.history.deliveries
            if d.message.group == message.group
            and d.message.receipt.read_at == message.receipt.read_at
        }
        earlier = {
            pk
            for pk in mine.before & self.world.live()
            if pk < message.id and self.history.sent.get(pk) == message.group
        }
        if early := earlier - together:
            raise Broken(f"message {message.id} was settled before {sorted(early)} of its group")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        from django.db import transaction

        with transaction.atomic(using=self.alias):
            yield
            self.gate("COMMIT")

    def expire(self) -> None:
        """Let all leases expire, and let another message start at each rate."""
        self.sql(
            "WITH leases AS (UPDATE pgqueue_lease SET vt = vt - interval '1 day' "
            "WHERE vt > statement_timestamp()), "
            "slots AS (UPDATE pgqueue_group SET free_at = free_at - interval '1 day' "
            "WHERE free_at > statement_timestamp()) "
            "UPDATE pgqueue_deferred SET vt = vt - interval '1 day' "
            "WHERE vt > statement_timestamp()"
        )
        self.history.passed += 1

    def limit_groups(self, limit: int) -> None:
        self.sql(f"UPDATE pgqueue_queue SET group_limit = {limit} WHERE name = '{self.name}'")
        self.history.limits["group_limit"] = limit

    def sql(self, statement: str) -> None:
        from django.db import connections

        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement)


Script = Callable[[Session], None]


class Choice(NamedTuple):
    """The session that was chosen, by its position among the runnable ones. The previous session is
    first.
    """

    chosen: int
    among: int
    #: Whether a choice other than the first interrupts a session that could continue.
    leaves: bool

    @property
    def is_switch(self) -> bool:
        return self.leaves and self.chosen > 0


@dataclass(frozen=True)
class Scenario:
    name: str
    #: A description: the messages, and each session's actions.
    story: str
    prepare: Callable[[Any], None]
    scripts: tuple[Script, ...]
    #: How often a session that could continue may be interrupted; None: without limit.
    switches: int | None = None
    #: The limits and rates of the queue. A rate allows two starts a day.
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return self.name if self.limits else "orders"


def queues() -> dict[str, dict[str, Any]]:
    """The queues of all scenarios, with their limits."""
    return {scenario.queue: scenario.limits for scenario in SCENARIOS}


class World:
    """The server's state between two steps, read with a separate connection."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def live(self) -> frozenset[int]:
        return frozenset(pk for (pk,) in self.connection.execute("SELECT id FROM pgqueue_live"))

    def places(self) -> Counter[int]:
        return Counter(
            pk
            for (pk,) in self.connection.execute(
                "SELECT id FROM pgqueue_live UNION ALL SELECT id FROM pgqueue_archive"
            )
        )

    def messages(self) -> set[int]:
        return {pk for (pk,) in self.connection.execute("SELECT id FROM pgqueue_message")}

    def blocked(self, session: Session) -> bool:
        row = self.connection.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0", [session.pid]
        ).fetchone()
        return row == (True,)

    def check(self, history: History) -> None:
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            places, messages = self.places(), self.messages()
            in_flight, twice_head = self.in_flight(), self.in_two_slots()
        if lost := {pk for pk in messages if not places[pk]}:
            raise Broken(f"messages {sorted(lost)} are in no place")
        if twice := {pk for pk, count in places.items() if count > 1}:
            raise Broken(f"messages {sorted(twice)} are in two places")
        if twice_head:
            raise Broken(f"messages {sorted(twice_head)} are in two slots")
        self.check_limits(history, in_flight)

    def check_limits(self, history: History, in_flight: Counter[str]) -> None:
        for group, count in in_flight.items():
            limit = history.limits.get("group_limit" if group else "limit", count)
            # A lowered limit lets those in flight go on.
            if count > max(limit, history.in_flight[group]):
                raise Broken(f"{count} messages of group {group!r} are in flight, limit {limit}")
        history.in_flight = in_flight
        started = Counter[str]()
        for delivered in history.deliveries:
            started.update({"", delivered.message.group or ""})
        for group, count in started.items():
            rate = history.limits.get("group_rate" if group else "rate")
            if rate and count > 1 + history.passed:
                raise Broken(f"{count} messages of group {group!r} have started, rate {rate}")

    def in_flight(self) -> Counter[str]:
        """The leases of each group; of the queue, as "", those that have not expired."""
        rows = self.connection.execute(
            "SELECT coalesce(group_key, ''), vt > statement_timestamp() FROM pgqueue_deferred "
            "WHERE state = 'PROCESSING' UNION ALL "
            "SELECT '', vt > statement_timestamp() FROM pgqueue_lease, unnest(ids)"
        ).fetchall()
        return Counter(group for group, _ in rows if group) + Counter({"": sum(v for _, v in rows)})

    def in_two_slots(self) -> set[int]:
        rows = self.connection.execute(
            "SELECT head FROM pgqueue_group WHERE head IS NOT NULL AND group_key <> '' "
            "GROUP BY head HAVING count(*) > 1"
        )
        return {pk for (pk,) in rows}

    def reset(self, queue: str, limits: dict[str, Any]) -> None:
        """Delete every message, and set the limits of a queue, without firing triggers."""
        tables = ["ready", "deferred", "lease", "waiting", "group", "recheck", "claim"]
        tables += ["message", "archive"]
        with self.connection.transaction():
            self.connection.execute("SET LOCAL session_replication_role = replica")
            self.connection.execute("; ".join(f"DELETE FROM pgqueue_{table}" for table in tables))
            for name, value in limits.items():
                self.connection.execute(
                    f'UPDATE pgqueue_queue SET "{name}" = %s WHERE name = %s', [value, queue]
                )


class Explorer:
    """Runs interleavings of the sessions on the server."""

    def __init__(self, url: str) -> None:
        self.world = World(url)
        self.sessions = {alias: Session(alias) for alias in ALIASES[1:]}
        for session in self.sessions.values():
            session.world = self.world

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
        self.world.connection.close()

    def run(self, scenario: Scenario, prefix: list[int]) -> list[Choice]:
        """Run one interleaving: the choices of ``prefix``, then always the first. Raises Broken."""
        from django_pgqueue import queue
        from django_pgqueue.engine.read import positions

        positions._positions.clear()
        self.world.reset(scenario.queue, scenario.limits)
        history = History(limits=dict(scenario.limits))
        for pk, group in scenario.prepare(queue(scenario.queue)) or ():
            history.sent[pk] = group
        running: list[tuple[Session, Future[None]]] = []
        for alias, script in zip(ALIASES[1:], scenario.scripts, strict=False):
            session = self.sessions[alias]
            session.name = scenario.queue
            session.history = history
            running.append((session, session.begin(script)))
        choices: list[Choice] = []
        trace: list[str] = []
        session: Session | None = None
        try:
            while True:
                able = [session for session, _ in running if self._is_able(session)]
                if not able:
                    break
                goes_on = session in able
                able.sort(key=lambda each: each is not session)
                chosen = prefix[len(choices)] if len(choices) < len(prefix) else 0
                choices.append(Choice(chosen, len(able), goes_on))
                if chosen >= len(able):
                    raise RuntimeError("the same choices led elsewhere: something else decides")
                session = able[chosen]
                trace.append(f"{session.alias}: {session.label}")
                session.let_go()
                self._is_able(session)
                self.world.check(history)
            for _, future in running:
                future.result(PATIENCE)
            trace.append("drain")
            self._drain(scenario.queue, history)
        except Exception as error:
            for session, future in running:
                while not future.done():
                    session.let_go()
                    session.waiting.wait(0.05)
            raise Broken(f"{error!r} in {scenario.name}:\n  " + "\n  ".join(trace)) from error
        return choices

    def _is_able(self, session: Session) -> bool:
        """Wait until a session stops before a statement, ends, or waits for a lock."""
        deadline = time.monotonic() + PATIENCE
        while not session.waiting.wait(0.01):
            if self.world.blocked(session):
                return False
            if time.monotonic() > deadline:
                raise Broken(f"{session.alias} hangs in {session.label}")
        return not session.done

    def _drain(self, orders: str, history: History) -> None:
        from django_pgqueue import queue

        for name in (orders, "dead"):
            drained = queue(name)
            idle = 0
            for _round in range(50):
                history.passed += 1
                self.world.connection.execute(
                    "UPDATE pgqueue_group SET free_at = '2000-01-01' "
                    "WHERE free_at > statement_timestamp() AND free_at < 'infinity'"
                )
                self.world.connection.execute("UPDATE pgqueue_deferred SET vt = '2000-01-01'")
                self.world.connection.execute("UPDATE pgqueue_lease SET vt = '2000-01-01'")
                self.world.connection.execute("UPDATE pgqueue_waiting SET vt = NULL")
                messages = drained.read(qty=3, vt=60)
                self.world.check(history)
                # A read that puts heads back, because the limit is lower, may return nothing.
                idle = 0 if messages else idle + 1
                if idle == 2:
                    break
                for message in messages:
                    if message.id in history.settled and history.settled[message.id] != "fail":
                        raise Broken(f"message {message.id} is read after it was settled")
                if len(drained.archive(messages)) != len(messages):
                    raise Broken(f"not all of {messages} could be archived at the end")
            self.world.check(history)
        if left := self.world.live():
            raise Broken(f"messages {sorted(left)} are never read")
        if lost := {pk for pk in history.sent if pk not in self.world.messages()} - {
            pk for pk, operation in history.settled.items() if operation == "delete"
        }:
            raise Broken(f"messages {sorted(lost)} are lost")


def explore(
    explorer: Explorer,
    scenario: Scenario,
    most: int | None,
    tell: Callable[[int], None],
    switches: int | None = None,
) -> tuple[int, bool]:
    """Run all interleavings of a scenario within its bound, or the first ``most`` of them. Returns
    how many ran, and whether those were all.
    """
    bound = scenario.switches if switches is None else switches
    prefix: list[int] = []
    number = 0
    while most is None or number < most:
        choices = explorer.run(scenario, prefix)
        number += 1
        tell(number)
        later = following(choices, bound)
        if later is None:
            return number, True
        prefix = later
    return number, False


def following(choices: list[Choice], bound: int | None) -> list[int] | None:
    """The next choices, depth first, with no more switches than the bound; None after the last.

    >>> following([Choice(0, 2, False), Choice(0, 2, True)], 0)
    [1]
    """
    while choices:
        last = choices.pop()
        later = last._replace(chosen=last.chosen + 1)
        switches = sum(choice.is_switch for choice in (*choices, later))
        if later.chosen < later.among and (bound is None or switches <= bound):
            return [choice.chosen for choice in (*choices, later)]
    return None


# Scenarios


def singles(count: int) -> Callable[[Any], Any]:
    return lambda orders: [(orders.send(number), None) for number in range(count)]


def of_groups(*groups: str) -> Callable[[Any], Any]:
    return lambda orders: [(orders.send(n, group=g), g) for n, g in enumerate(groups)]


def work(session: Session) -> None:
    session.settle("archive", session.read())


def work_twice(session: Session) -> None:
    work(session)
    work(session)


def time_passes(session: Session) -> None:
    session.expire()


def release_then_ack(session: Session) -> None:
    """After the release, the archive by the same receipt must do nothing."""
    messages = session.read()
    session.settle("release", messages)
    session.settle("archive", messages)


def retry_then_ack(session: Session) -> None:
    messages = session.read()
    session.settle("retry", messages, {message.receipt: 0 for message in messages})
    work(session)


def fail_then_ack(session: Session) -> None:
    messages = session.read()
    session.settle("fail", messages, {message.receipt: "no" for message in messages})
    session.settle("archive", messages)


def redrive(session: Session) -> None:
    from django_pgqueue import queue
    from django_pgqueue.engine.audit.entry import unrecorded

    # The audit log would end its entry in a statement of its own, when others may have settled
    # the messages already.
    with unrecorded():
        queue("dead", using=session.alias).redrive()
    # A message that was put back may be settled again.
    for pk, operation in list(session.history.settled.items()):
        if operation == "fail":
            del session.history.settled[pk]


def batch(session: Session) -> None:
    messages = session.read(qty=3)
    session.settle("archive", messages[:2])
    session.settle("archive", messages[2:])


def grouped(session: Session) -> None:
    session.settle("archive", session.read("read_grouped", qty=2))


def ack_in_transaction(session: Session) -> None:
    messages = session.read()
    with session.transaction():
        session.settle("archive", messages)


def send_late(session: Session) -> None:
    with session.transaction():
        session.send("late")


def read_two(session: Session) -> None:
    for message in session.read(qty=2):
        session.settle("archive", [message])


def retry_two(session: Session) -> None:
    """The retry has two statements, so it is not judged at its end."""
    session.queue.retry({message.receipt: 60 for message in session.read(qty=2)})


def change_limit(session: Session) -> None:
    session.limit_groups(1)
    session.limit_groups(2)


def send_to_group(session: Session) -> None:
    with session.transaction():
        session.send("late", group="g")


def position(session: Session) -> None:
    for _ in range(3):
        work(session)


SCENARIOS = (
    Scenario(
        "expire",
        "two messages; two workers read and ack; all leases end",
        singles(2),
        (work, work, time_passes),
    ),
    Scenario(
        "release",
        "one message; one gives it back and acks it then, one works",
        singles(1),
        (release_then_ack, work, time_passes),
    ),
    Scenario(
        "retry",
        "one message; one tries it again, one works, leases end",
        singles(1),
        (retry_then_ack, work, time_passes),
    ),
    Scenario(
        "redrive",
        "one message; one fails it and acks it then, one redrives, one works",
        singles(1),
        (fail_then_ack, redrive, work),
    ),
    Scenario(
        "batches",
        "six messages; two read three as one batch and ack it in parts, leases end",
        lambda orders: [(pk, None) for pk in orders.send_batch(range(6))],
        (batch, batch, time_passes),
    ),
    Scenario(
        "groups",
        "three messages of one group, one of another; two workers, leases end",
        of_groups("g", "g", "h", "g"),
        (work, work, time_passes),
    ),
    Scenario(
        "grouped",
        "three messages of one group; one reads two at once, one works, leases end",
        of_groups("g", "g", "g"),
        (grouped, work, time_passes),
    ),
    Scenario(
        "promote",
        "a group of two; one acks in a transaction, one sends to the group in one, one reads",
        of_groups("g", "g"),
        (ack_in_transaction, send_to_group, work),
        switches=2,
    ),
    Scenario(
        "begin",
        "a new group; two send its first messages in transactions, one reads",
        lambda orders: (),
        (send_to_group, send_to_group, work_twice),
    ),
    Scenario(
        "late",
        "four messages; one reads behind its position, one commits late, one works",
        singles(4),
        (position, send_late, work),
    ),
    Scenario(
        "two-slots",
        "at most two of a group; five messages of it; leases end, two work",
        of_groups("g", "g", "g", "g", "g"),
        (time_passes, read_two, read_two),
        limits={"group_limit": 2},
    ),
    Scenario(
        "three-slots",
        "at most three of a group; five messages of it; one puts two off, one works, leases end",
        of_groups("g", "g", "g", "g", "g"),
        (retry_two, read_two, time_passes),
        limits={"group_limit": 3},
    ),
    Scenario(
        "open",
        "at most two of a new group; two send to it in transactions, one reads",
        lambda orders: (),
        (send_to_group, send_to_group, work_twice),
        limits={"group_limit": 2},
    ),
    Scenario(
        "change",
        "three, one, then two of a group; one changes that, two work",
        of_groups("g", "g", "g", "g"),
        (change_limit, read_two, work),
        switches=3,
        limits={"group_limit": 3},
    ),
    Scenario(
        "whole",
        "at most two of the queue; four messages; two work, leases end",
        singles(4),
        (read_two, work, time_passes),
        limits={"limit": 2},
    ),
    Scenario(
        "group-rate",
        "two starts of a group a day; three messages of it; two work, a day passes",
        of_groups("g", "g", "g"),
        (work, work, time_passes),
        limits={"group_rate": "2/d", "group_burst": 1},
    ),
    Scenario(
        "rate",
        "two starts of the queue a day; three messages; two work, a day passes",
        singles(3),
        (work, work, time_passes),
        limits={"rate": "2/d", "burst": 1},
    ),
)


@contextmanager
def server() -> Iterator[str]:
    if url := os.environ.get("EXPLORER_URL"):
        yield url
        return
    with one_server({"fsync": "off", "autovacuum": "off"}) as embedded:
        yield embedded.url()


def set_up(url: str) -> None:
    import django
    from django.conf import settings
    from environ import Env

    database = Env.db_url_config(url)
    settings.configure(
        SECRET_KEY="only for tests",
        USE_TZ=True,
        DATABASES={alias: dict(database) for alias in ALIASES},
        INSTALLED_APPS=["django.contrib.contenttypes", "django_pgqueue"],
        # Cached queues never expire, so that an interleaving always has the same statements.
        PGQUEUE={"CACHE_SECONDS": 10**6},
    )
    django.setup()
    from django.core.management import call_command

    from django_pgqueue.engine.read import positions, reading
    from django_pgqueue.models import Message

    call_command("migrate", verbosity=0)
    Message.objects.create_queue("dead")
    for name, limits in queues().items():
        Message.objects.create_queue(name, dead_letter_queue="dead", **limits)
    # No clock decides: a read begins at the front only when a read comes back short.
    positions.SWEEP_INTERVAL = positions.SWEEP_LIMIT = 10**9
    # Lease small batches as large ones are leased.
    reading.BATCH_FROM = 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.explorer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(names))
    parser.add_argument("--most", type=int, help="interleavings of each scenario (default: all)")
    parser.add_argument(
        "--switches", type=int, help="away from a session that could go on, at most"
    )
    parser.add_argument("--list", action="store_true", help="tell the scenarios' stories")
    options = parser.parse_args(arguments)
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"no scenario {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    if options.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:10} {scenario.story}")
        return 0
    with server() as url:
        set_up(url)
        explorer = Explorer(url)
        try:
            for scenario in SCENARIOS:
                if scenario.name not in (options.scenarios or names):
                    continue
                began = time.monotonic()

                def tell(number: int, name: str = scenario.name, began: float = began) -> None:
                    if sys.stderr.isatty():
                        print(f"\r{name}: {number} ...", end="", file=sys.stderr, flush=True)

                number, complete = explore(explorer, scenario, options.most, tell, options.switches)
                took = time.monotonic() - began
                of = "all" if complete else "the first"
                print(f"{scenario.name}: {of} {number} interleavings, {took:.0f} s", flush=True)
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        finally:
            explorer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
