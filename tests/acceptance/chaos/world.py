"""The server, queues, producers and consumers of a run, and its result."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psycopg

from django_pgqueue.embedded.server import EmbeddedServer
from tests.acceptance.chaos.checker import State, Verdict, check
from tests.waiting import until
from tests.working import history
from tests.working.running import ROOT, Command, runconsumer

__all__ = ["QUEUES", "World"]

QUEUES = ["lease", "transactional", "batch", "async", "locked"]
#: The visibility timeout in seconds: short, so that interrupted messages return soon.
LEASE = 2


# A lease that has expired is no longer in flight.
IN_FLIGHT = """
SELECT coalesce(q.name || ' ' || d.group_key, q.name), count(*)
FROM pgqueue_deferred d JOIN pgqueue_queue q ON q.id = d.queue_id
WHERE d.state = 'PROCESSING' AND d.vt > clock_timestamp()
GROUP BY q.name, ROLLUP (d.group_key)
"""


class World:
    """A run. Everything random in it derives from its seed."""

    def __init__(self, server: EmbeddedServer, directory: Path, seed: int, scale: float) -> None:
        self.server = server
        self.directory = directory
        self.history = directory / "history"
        self.history.mkdir()
        self.scale = scale
        self.draw = random.Random(seed)
        self.seed = seed
        self.url = server.url("chaos")
        self.faults = 0
        self.consumers: list[Command] = []
        self._producers: list[subprocess.Popen[bytes]] = []
        self._names: tuple[str, ...] = ()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    # Acts

    def queues(self, *names: str, **options: Any) -> None:
        """Create the run's queues and their dead-letter queue."""
        settings = {"visibility_timeout": LEASE, "dead_letter_queue": "dead", **options}
        self._names = names or tuple(QUEUES)
        wanted = {"dead": {}, **dict.fromkeys(self._names, settings)}
        prepared = self._run("tests.acceptance.chaos.prepare", json.dumps(wanted)).wait(180)
        assert prepared == 0

    def produce(self, count: int, *, producers: int = 1, **plan: Any) -> None:
        """Start processes that send ``count`` messages in total, and return at once."""
        plan = {"queues": QUEUES, **plan}
        each = max(1, int(count * self.scale) // producers)
        for number in range(producers):
            seed = self.draw.randrange(10**9)
            self._producers.append(
                self._run(
                    "tests.acceptance.chaos.producer",
                    f"p{number}",
                    str(seed),
                    str(each),
                    json.dumps(plan),
                )
            )

    def consume(self, *arguments: object, url: str | None = None, **environment: Any) -> Command:
        """Start a consumer process for the run's queues."""
        environment.setdefault("WORKING_HISTORY", self.history)
        consumer = runconsumer(url or self.url, *self._names, *arguments, **environment)
        self.consumers.append(consumer)
        return consumer

    def until_started(self, consumer: Command) -> None:
        """Wait until a consumer has started or died. While it starts, signals find no handler, and
        a broken connection ends it.
        """
        path = self.history / f"{consumer.pid}.jsonl"

        def started() -> bool:
            return path.exists() and '"started"' in path.read_text()

        until(lambda: started() or not consumer.alive, 180)

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.draw.uniform(least, most))

    def while_producing(self, act: Callable[[], None], *, least: int = 1) -> None:
        """Call ``act`` repeatedly while messages are sent, and at least ``least`` times."""
        while self.faults < least or any(each.poll() is None for each in self._producers):
            act()
            self.faults += 1

    def terminate_backends(self, share: float) -> None:
        """Terminate some of the other processes' connections."""
        with self.connect() as connection:
            pids = [
                row[0]
                for row in connection.execute(
                    "SELECT pid FROM pg_stat_activity "
                    "WHERE datname = 'chaos' AND pid <> pg_backend_pid() ORDER BY pid"
                )
            ]
            for pid in pids:
                if self.draw.random() < share:
                    connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def watch_flight(self) -> Counter[str]:
        """Count the leased messages of each group of a queue, again and again, until the end.

        Returns the most at once, by queue and group, and by queue alone. Each count sees one
        snapshot, so it is exact.
        """
        most: Counter[str] = Counter()

        def watch() -> None:
            while not self._ended.is_set():
                with contextlib.suppress(psycopg.Error), self.connect() as connection:
                    while not self._ended.is_set():
                        for name, count in connection.execute(IN_FLIGHT).fetchall():
                            most[name] = max(most[name], count)
                        time.sleep(0.002)

        self._watcher = threading.Thread(target=watch)
        self._watcher.start()
        return most

    # The end

    def finish(self, seconds: float = 180, *, killed: bool = False) -> Verdict:
        """Wait until everything is handled, stop the consumers, and check the run.

        If processes were ``killed``, dead ones are restarted, and may leave their rows: other
        processes remove these when the heartbeat is long overdue.
        """
        for producer in self._producers:
            assert producer.wait(300) == 0
        for consumer in self.consumers:
            consumer.send(signal.SIGCONT)
        self.until_drained(seconds, restart=killed)
        for consumer in self.consumers:
            if "--processes" not in consumer.arguments:
                self.until_started(consumer)
            consumer.terminate()
        for consumer in self.consumers:
            code = consumer.wait(120)
            assert code == 0, f"a consumer ended with {code}:\n{consumer.output}"
        verdict = check(history.read(self.history), self.state())
        print(f"seed {self.seed}: {self.faults} faults; {verdict}")
        self._count(verdict)
        for ops in verdict.wrong.values():
            self.tell(ops)
        assert verdict.wrong == {}, f"{verdict}; wrong: {verdict.wrong}"
        assert killed or verdict.processes == 0
        return verdict

    def _count(self, verdict: Verdict) -> None:
        """Add a line to the file CHAOS_COUNTS, for ``python -m tests.acceptance.chaos``."""
        if path := os.environ.get("CHAOS_COUNTS"):
            counts = {
                "messages": verdict.messages,
                # Faults from outside, and faults requested by messages.
                "faults": self.faults + verdict.asked_for,
                "redelivered": verdict.redelivered,
                "lost": len(verdict.lost),
                "phantoms": len(verdict.phantoms),
                "twice": len(verdict.duplicated),
                "twice in a transaction": len(self.twice_in_transactions()),
            }
            with Path(path).open("a") as out:
                out.write(json.dumps(counts) + "\n")

    def twice_in_transactions(self) -> list[str]:
        """Messages of transactional and locked handlers with more than one effect."""
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT number FROM orders_app_order WHERE note IN ('transactional', 'locked') "
                "GROUP BY number HAVING count(*) > 1"
            )
            return [op for (op,) in rows]

    def tell(self, ops: Iterable[str]) -> None:
        """Print the events of some messages, and where they ended."""
        events = history.read(self.history)
        with self.connect() as connection:
            for op in ops:
                print(*(event for event in events if event.get("op") == op), sep="\n")
                rows = connection.execute(
                    "SELECT a.* FROM pgqueue_archive a JOIN pgqueue_message m USING (id) "
                    "WHERE m.body->>'op' = %s",
                    [op],
                )
                print(*rows, sep="\n")

    def until_drained(self, seconds: float, *, restart: bool = False) -> None:
        """Wait until every queue is empty; ``restart`` restarts consumers that die meanwhile."""

        def drained() -> bool:
            for consumer in self.consumers:
                if not consumer.alive:
                    code = consumer.process.returncode
                    expected = -signal.SIGKILL if restart else None
                    assert code == expected, f"a consumer ended with {code}"
                    consumer.start()
            return self._drained()

        try:
            until(drained, seconds)
        except AssertionError:
            for number, consumer in enumerate(self.consumers):
                print(f"consumer {number}, alive: {consumer.alive}\n{consumer.output[-1500:]}")
            with self.connect() as connection:
                rows = connection.execute(
                    "SELECT l.*, m.body, clock_timestamp() FROM pgqueue_live l "
                    "JOIN pgqueue_message m USING (id) LIMIT 5"
                )
                print(*rows, sep="\n")
            raise

    def state(self) -> State:
        with self.connect() as connection:
            run = connection.execute
            effects = Counter(row[0] for row in run("SELECT number FROM orders_app_order"))
            archive = run(
                "SELECT m.body->>'op', a.state FROM pgqueue_archive a "
                "JOIN pgqueue_message m USING (id)"
            ).fetchall()
            live = run(
                "SELECT m.body->>'op', l.state, q.name FROM pgqueue_live l "
                "JOIN pgqueue_message m USING (id) JOIN pgqueue_queue q ON q.id = l.queue_id"
            ).fetchall()
            [(processes,)] = run("SELECT count(*) FROM pgqueue_process WHERE gone_at IS NULL")
        return State(
            effects=effects,
            completed=Counter(op for op, state in archive if state == "COMPLETED"),
            failed=Counter(
                [op for op, state in archive if state == "FAILED"]
                + [op for op, _, queue in live if queue == "dead"]
            ),
            live={op: state for op, state, queue in live if queue != "dead"},
            processes=processes,
        )

    def _drained(self) -> bool:
        try:
            with self.connect() as connection:
                row = connection.execute(
                    "SELECT count(*) FROM pgqueue_live l JOIN pgqueue_queue q ON q.id = l.queue_id "
                    "WHERE q.name <> 'dead'"
                ).fetchone()
        except psycopg.OperationalError:
            return False
        return row == (0,)

    def starts(self, queue: str) -> dict[str, list[float]]:
        """When the last delivery of each archived message started, in seconds, by group."""
        found: dict[str, list[float]] = {}
        with self.connect() as connection:
            rows = connection.execute(
                "SELECT m.group_key, extract(epoch FROM a.last_read_at)::float"
                " FROM pgqueue_archive a JOIN pgqueue_message m USING (id)"
                " JOIN pgqueue_queue q ON q.id = a.queue_id WHERE q.name = %s",
                [queue],
            )
            for group, at in rows:
                found.setdefault(group, []).append(at)
        return found

    def close(self) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        for producer in self._producers:
            producer.kill()
            producer.wait()
        for consumer in self.consumers:
            with contextlib.suppress(ProcessLookupError):
                consumer.__exit__(None, None, None)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, connect_timeout=10)

    def _run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.working.settings",
                "DATABASE_URL": self.url,
                "WORKING_HISTORY": str(self.history),
            },
        )
