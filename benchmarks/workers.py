"""Consumer processes from outside: started together, held at a gate, asked to stop."""

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

from benchmarks import database
from benchmarks.machine import Process, spent
from benchmarks.peers import Worker

__all__ = ["Running", "drained", "running"]

START_SECONDS = 60
#: The least and the longest pause between two looks at what is left, in seconds: a look takes time
#: from what is measured, and the first ones tell little of how long the rest will take.
PAUSE, LONG_PAUSE = 0.02, 0.2


class Running:
    """Processes of one worker, and what they said."""

    def __init__(self, processes: list[subprocess.Popen], log: Path) -> None:
        self.processes = processes
        self.log = log

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def wait_for(
        self, condition: Callable[[], Any], seconds: float = START_SECONDS, pause: float = PAUSE
    ) -> None:
        """Wait until something is so. Raises RuntimeError with the processes' last words."""
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
    """Processes of a worker; asked to stop at the end, as an init system would."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        command = worker.command(mode, concurrency)
        variables = {**os.environ, **worker.environment(), **environment}
        started: list[subprocess.Popen] = []
        try:
            with log.open("wb") as output:
                options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
                # In a session of its own: Ctrl-C is for the benchmark, which then comes back here.
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
        # Each leads a session; of some, processes of their own outlive them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def gate(table: str) -> Iterator[Callable[[], int]]:
    """No process claims a row of the table; gives how many processes would like to."""
    with database.connect() as connection:
        connection.autocommit = False
        # Reads pass, row locks and writes do not.
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
) -> dict[str, float]:
    """The rate and the cost of a backlog of ``count``, until it is done or for ``limit`` seconds.

    The clock starts when every process stands at the gate: starting is not measured. It stops with
    the last progress. The cost is the processors' time for a message, of workers and server.
    """
    if not count / 2 < worker.remaining(mode) <= count:
        worker.clear(mode)
    # The slow ones have most of the last backlog left.
    if lacking := count - worker.remaining(mode):
        worker.fill(lacking, mode)
    worker.tune(mode)
    settle()
    with running(worker, mode, processes=processes, concurrency=concurrency) as found:
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
    """How many are done, and in how many seconds: until nothing remains, or for ``limit`` seconds.

    The seconds end with the last progress: some workers keep their last messages for later.
    """
    started = now = ended = time.monotonic()
    left = count
    while left and now - started < limit:
        done = count - left
        # Half of what it may still take, so that the end is met and looks are few.
        guess = (ended - started) * left / done / 2 if done else PAUSE
        time.sleep(min(max(guess, PAUSE), LONG_PAUSE))
        now, before = time.monotonic(), left
        left = remaining()
        if left < before:
            ended = now
    return count - left, ended - started


def cost(found: Running, worker: Worker) -> dict[str, float]:
    """Processor seconds that workers and server have used, where the server runs here too."""
    processes = Process.all()
    backend = worker.connection.info.backend_pid
    sides = {"worker": spent(processes, [process.pid for process in found.processes])}
    if backend in processes:
        # All but what this benchmark's own questions cost.
        sides["server"] = spent(processes, [processes[backend].parent], without=[backend])
    return sides if processes else {}
