"""Sessions that repeat a step as fast as they can, while observers look at the tables.

    def step(worker):
        for message in read(worker.queue):
            worker.note("read", id=message.id)
            archive(worker.queue, message.receipt)

    full_speed.threads(step)                   # eight
    full_speed.processes(players.consume)      # three, of functions that a process can import
    seen = full_speed.observe(IN_FLIGHT)       # its values, as often as they can be read
    full_speed.cut_connections()
    full_speed.run()
    assert max(seen) <= 4

Each session has its own connection and its own file of notes, so that ``kill -9`` loses none. The
clock of the notes is the machine's: it is the same in all processes. PROMISES_SECONDS=60 makes each
run longer.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection, connections

from django_pgqueue import bare
from django_pgqueue.engine.open_queue import OpenQueue
from tests.waiting import until as wait_until

__all__ = [
    "IN_FLIGHT",
    "IN_FLIGHT_OF_A_GROUP",
    "SECONDS",
    "FullSpeed",
    "Journal",
    "Note",
    "Step",
    "Worker",
]

SECONDS = float(os.environ.get("PROMISES_SECONDS", "1"))
#: The name of the workers' connections in pg_stat_activity.
NAME = "pgqueue at full speed"
OBSERVER = "pgqueue observer"
#: Seconds that a worker may take to end.
PATIENCE = 60.0

#: How many messages are leased. The clock is read after the statement's snapshot was taken: a lease
#: that ends in between does not count beside the one that took its place.
IN_FLIGHT = """
    SELECT (SELECT count(*) FROM pgqueue_deferred
            WHERE state = 'PROCESSING' AND vt > clock_timestamp())
         + (SELECT coalesce(sum(cardinality(ids)), 0) FROM pgqueue_lease
            WHERE vt > clock_timestamp())
"""
#: The same for the group with the most.
IN_FLIGHT_OF_A_GROUP = """
    SELECT coalesce(max(number), 0) FROM (
        SELECT count(*) AS number FROM pgqueue_deferred
        WHERE state = 'PROCESSING' AND vt > clock_timestamp() AND group_key IS NOT NULL
        GROUP BY group_key) g
"""

Note = dict[str, Any]


class Journal:
    """A file of notes: a line each, in one write, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: Any) -> None:
        now = {"at": time.monotonic(), "clock": time.time()}
        line = json.dumps({**now, "event": event, **facts})
        os.write(self._file, (line + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


class Worker(Journal):
    """A session that repeats a step."""

    def __init__(self, url: str, queue: str, notes: Path, seed: int, settings: str) -> None:
        super().__init__(notes)
        self._url, self._name, self._settings = url, queue, settings
        self.draw = random.Random(seed)
        #: What a step remembers from one call to the next.
        self.memory: dict[str, Any] = {}
        self.connection: psycopg.Connection[Any]
        self.queue: OpenQueue
        self._connect()
        self.note("begins")

    def run(self, step: Step, stop: Path, may_fail: bool) -> None:
        while not stop.exists():
            try:
                step(self)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                raise
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if not may_fail:
                    raise
                if self.connection.broken:
                    self.connection.close()
                    self._connect()

    def _connect(self) -> None:
        while True:
            # Its name only comes with its settings, so nobody cuts it before.
            self.connection = psycopg.connect(self._url, autocommit=True)
            try:
                self.queue = bare.open_queue(self.connection, self._name)
                self.connection.execute(f"{self._settings}; SET application_name = '{NAME}'")
                return
            except psycopg.OperationalError:
                self.connection.close()  # cut, or a statement took too long

    def close(self) -> None:
        self.connection.close()
        super().close()


Step = Callable[[Worker], object]


def _work(step: Step, stop: Path, may_fail: bool, *given: Any) -> None:
    """Be a worker; called in its thread or process."""
    worker = Worker(*given)
    try:
        worker.run(step, stop, may_fail)
    finally:
        worker.close()


class FullSpeed:
    """Workers, observers and faults around one queue."""

    def __init__(self, url: str, folder: Path, queue: str = "orders") -> None:
        self._url, self._folder, self._queue = url, folder, queue
        self._steps: list[Step] = []
        self._step_of_processes: list[Step] = []
        self._observed: list[tuple[str, Any, list[Any]]] = []
        self._beside: list[Callable[[], object]] = []
        self._processes: list[tuple[multiprocessing.process.BaseProcess, Path]] = []
        self._settings = "SELECT"
        #: Workers run until this file exists.
        self._stop = folder / "stop"
        self._may_fail = False
        self._begun = 0
        self.draw = random.Random(7)
        self.errors: list[BaseException] = []
        #: For notes of the test's own handlers, in any thread.
        self.journal = Journal(folder / "0.notes")
        self.journal.note("begins")
        #: How many connections were cut, and how many processes killed.
        self.cut = self.killed = 0

    # What to run

    def threads(self, step: Step, number: int = 8) -> None:
        self._steps += [step] * number

    def processes(self, step: Step, number: int = 3) -> None:
        """``step`` is a function, or a ``partial`` of one, in a module without Django."""
        self._step_of_processes += [step] * number

    def observe(self, statement: str, params: Any = None) -> list[Any]:
        """Returns the list of distinct values that the statement will have returned."""
        seen: list[Any] = []
        self._observed.append((statement, params, seen))
        return seen

    def beside(self, act: Callable[[], object]) -> None:
        """Call ``act`` again and again, in a thread of its own."""
        self._beside.append(act)

    # Faults

    def cut_connections(self, *, of_consumers: bool = False) -> None:
        """Terminate a random worker's backend, again and again.

        With ``of_consumers`` any backend but those of the test itself and of observers.
        """
        self._may_fail = True
        connection.ensure_connection()
        pid = connection.connection.info.backend_pid
        if of_consumers:
            cut = partial(self._cut, "application_name <> %s AND pid <> %s", [OBSERVER, pid])
        else:
            cut = partial(self._cut, "application_name = %s", [NAME])
        self._beside.append(cut)

    def kill_processes(self) -> None:
        """``kill -9`` a random process, again and again; another one takes its place."""
        self._may_fail = True
        self._beside.append(self._kill)

    def time_out_statements(self, milliseconds: int = 8) -> None:
        """The server cancels each statement of a worker that takes longer."""
        self._may_fail = True
        self._settings = f"SET statement_timeout = {milliseconds}"

    # The run

    def run(
        self,
        seconds: float = SECONDS,
        *,
        least: int = 100,
        until: Callable[[], object] = lambda: True,
    ) -> None:
        """Run everything for this time, and then until ``until()`` and there are ``least`` notes.

        Raises the first error of a worker.
        """
        threads = [self._thread(_work, step, *self._given()) for step in self._steps]
        threads += [self._thread(self._repeat, act) for act in self._beside]
        threads += [self._thread(self._look, *each) for each in self._observed]
        self._processes = [self._process(step) for step in self._step_of_processes]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: self.errors or self._all_have_begun(), PATIENCE)
            self._sleep(seconds)
            wait_until(lambda: self.errors or (len(self.notes()) >= least and until()), PATIENCE)
        finally:
            self._stop.touch()
            for thread in threads:
                thread.join(PATIENCE)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in threads), "a session got stuck"
        for process, _ in self._processes:
            process.join(PATIENCE)
            assert process.exitcode is not None, "a process got stuck"
            assert process.exitcode == 0, "a process failed: its error is in the output"

    @staticmethod
    def wait(condition: Callable[[], object]) -> None:
        """Wait as long as a busy machine may need."""
        wait_until(condition, PATIENCE)

    def notes(self, event: str | None = None) -> list[Note]:
        """What workers noted so far, by time; ``by`` names the worker.

        A line that is being written may be visible in part: it is left out.
        """
        found = [
            {"by": path.stem, **json.loads(line)}
            for path in self._folder.glob("*.notes")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return sorted(
            (note for note in found if event in (None, note["event"])), key=lambda note: note["at"]
        )

    def close(self) -> None:
        """End what a failed test left."""
        self._stop.touch()
        self.journal.close()
        for process, _ in self._processes:
            process.kill()

    def _sleep(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.errors:
            time.sleep(0.05)

    def _given(self) -> tuple[Any, ...]:
        self._begun += 1
        notes = self._folder / f"{self._begun}.notes"
        return (
            *(self._stop, self._may_fail, self._url, self._queue, notes),
            *(self._begun, self._settings),
        )

    def _all_have_begun(self) -> bool:
        return all(path.stat().st_size for path in self._folder.glob("*.notes"))

    def _thread(self, act: Callable[..., object], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                act(*args)
            except BaseException as error:
                self.errors.append(error)
            finally:
                connections.close_all()

        return threading.Thread(target=run, daemon=True)

    def _process(self, step: Step) -> tuple[multiprocessing.process.BaseProcess, Path]:
        """Start a process; returns it with its file of notes."""
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_work, args=(step, *self._given()), daemon=True)
        process.start()
        return process, self._folder / f"{self._begun}.notes"

    def _repeat(self, act: Callable[[], object]) -> None:
        while not self._stop.exists():
            act()

    def _look(self, statement: str, params: Any, seen: list[Any]) -> None:
        values: set[Any] = set()
        with self._observer() as session:
            while not self._stop.exists():
                values.update(value for (value,) in session.execute(statement, params))
        seen += values

    def _cut(self, chosen: str, params: list[Any]) -> None:
        time.sleep(0.03)
        with self._observer() as session:
            found = session.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
                f"WHERE {chosen} AND datname = current_database() AND pid <> pg_backend_pid() "
                "ORDER BY random() LIMIT 1) s",
                params,
            ).fetchall()
        self.cut += len(found)

    def _observer(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True, application_name=OBSERVER)

    def _kill(self) -> None:
        number = self.draw.randrange(len(self._processes))
        victim, notes = self._processes[number]
        time.sleep(0.1)
        while not self._stop.exists() and not (notes.exists() and notes.stat().st_size > 500):
            time.sleep(0.01)  # it has hardly begun
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        self.killed += 1
        self._processes[number] = self._process(self._step_of_processes[number])
