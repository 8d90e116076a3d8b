"""Starts consumer processes together, holds them at a gate, and stops them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import database
from benchmarks.machine import spent
from benchmarks.peers import Worker

__all__ = ["Running", "drained", "running"]

START_SECONDS = 60
#: The shortest and the longest pause between two polls, in seconds. A poll slows what is measured,
#: and early polls predict the remaining time badly.
PAUSE, LONG_PAUSE = 0.02, 0.2


class Running:
    """One worker's processes, and their output."""

    def __init__(self, processes: list[subprocess.Popen], log: Path) -> None:
        self.processes = processes
        self.log = log

    def wait_for(
        self, condition: Callable[[], Any], seconds: float = START_SECONDS, pause: float = PAUSE
    ) -> None:
        """Wait until ``condition()`` is true. Raises RuntimeError with the end of the processes'
        output.
        """
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until or any(p.poll() is not None for p in self.processes):
                said = self.log.read_text(errors="replace")[-2000:]
                command = " ".join(map(str, self.processes[0].args))
                raise RuntimeError(f"{command} does not consume:\n{said}")
            time.sleep(pause)


@contextmanager
def running(
    worker: Worker,
    mode: str,
    *,
    processes: int = 1,
    concurrency: int | None = None,
    **environment: str,
) -> Iterator[Running]:
    """Start a worker's processes; stops them at the end, as an init system would."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        command = worker.command(mode, concurrency)
        variables = {**os.environ, **worker.environment(), **environment}
        started: list[subprocess.Popen] = []
        try:
            with log.open("wb") as output:
                options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
                # In a session of its own: Ctrl-C reaches only the benchmark, which then stops the
                # processes.
                options |= {"env": variables, "start_new_session": True}
                started.extend(subprocess.Popen(command, **options) for _ in range(processes))
            yield Running(started, log)
        finally:
            stop(started)


def stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + 10
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Each process leads a session, in which some leave other processes behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def gate(table: str) -> Iterator[Callable[[], int]]:
    """Keep all processes from claiming rows of a table; yields a function that counts the waiting
    ones.
    """
    with database.connect() as connection:
        connection.autocommit = False
        # EXCLUSIVE blocks row locks and writes, but no reads.
        connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

        def waiting() -> int:
            query = "SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = %s::regclass"
            row = connection.execute(f"{query} AND NOT granted", [table]).fetchone()
            assert row is not None
            return int(row[0])

        yield waiting


def drained(
    worker: Worker,
    mode: str,
    count: int,
    *,
    limit: float,
    settle: Callable[[], None],
    processes: int = 1,
    concurrency: int | None = None,
    **environment: str,
) -> dict[str, float]:
    """The rate and cost of handling ``count`` messages, or as many as are done within ``limit``
    seconds.

    The clock starts when every process waits at the gate, so start-up is not measured. It stops at
    the last progress. The cost is processor time per message, of workers and server.
    """
    if not count / 2 < worker.remaining(mode) <= count:
        worker.clear(mode)
    # A slow contestant still has most of its last backlog.
    if lacking := count - worker.remaining(mode):
        worker.fill(lacking, mode)
    worker.tune(mode)
    settle()
    with running(
        worker, mode, processes=processes, concurrency=concurrency, **environment
    ) as found:
        with gate(worker.table) as waiting:
            found.wait_for(lambda: waiting() >= processes)
            before = cost(found, worker)
        done, seconds = progress(lambda: worker.remaining(mode), count, limit)
        costs = {side: after - before[side] for side, after in cost(found, worker).items()}
    if not done:
        raise RuntimeError(f"none of {count} messages was done within {limit:g} s")
    return {
        "messages/s": done / seconds,
        **{f"µs, {side}": 1e6 * used / done for side, used in costs.items()},
    }


def progress(remaining: Callable[[], int], count: int, limit: float) -> tuple[int, float]:
    """How many messages are done, and in how many seconds: until none remain, or for ``limit``
    seconds.

    The seconds end at the last progress: some workers delay their last messages.
    """
    started = now = ended = time.monotonic()
    left = count
    while left and now - started < limit:
        done = count - left
        # Half of the estimated remaining time: few polls, and the end is noticed soon.
        guess = (ended - started) * left / done / 2 if done else PAUSE
        time.sleep(min(max(guess, PAUSE), LONG_PAUSE))
        now, before = time.monotonic(), left
        left = remaining()
        if left < before:
            ended = now
    return count - left, ended - started


def cost(found: Running, worker: Worker) -> dict[str, float]:
    """Processor seconds used by workers and server, if the server runs on this machine."""
    sides = {"worker": spent(process.pid for process in found.processes)}
    backend = worker.connection.info.backend_pid
    if psutil.pid_exists(backend):
        # Excludes the backend of the benchmark's own queries.
        sides["server"] = spent([psutil.Process(backend).ppid()], without=backend)
    return sides
