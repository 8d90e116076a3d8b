"""What a cell costs the server, seen from outside: processor time, log, flushes, waits."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import database
from benchmarks.machine import spent

__all__ = ["CLIENTS", "SERVER", "Observer", "Reading", "pin"]

#: The cores of the server's processes, and of all others.
SERVER, CLIENTS = 0, 1
PAUSE = 0.1

WAITS = """
    SELECT coalesce(wait_event_type || ': ' || wait_event, 'running'), count(*)
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()
    GROUP BY 1
"""
WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
# PostgreSQL 18 counts the log's flushes in pg_stat_io.
FLUSHES = {
    True: "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'",
    False: "SELECT wal_sync FROM pg_stat_wal",
}


@dataclass
class Reading:
    """Counters at one moment. ``client`` has the processor seconds of the clients, ``busy`` each
    core's busy and total seconds.
    """

    moment: float
    server_ns: int
    wal: int
    flushes: int
    busy: list[tuple[float, float]]
    waits: Counter[str]
    client: float


class Observer:
    """Samples waits and processor time in a thread, on a connection that is not counted."""

    def __init__(self) -> None:
        self.connection = database.connect(prepare_threshold=0)
        self.pid = self.connection.info.backend_pid
        local = psutil.pid_exists(self.pid)
        self.postmaster = psutil.Process(self.pid).ppid() if local else None
        self.flushes = FLUSHES[self.connection.info.server_version >= 180000]
        self.spent: dict[int, int] = {}
        self.waits: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def read(self, client: int) -> Reading:
        with self._lock:
            self._sample_time()
            [(wal,)] = self.connection.execute(WAL)
            [(flushes,)] = self.connection.execute(self.flushes)
            return Reading(
                time.monotonic(),
                sum(self.spent.values()),
                int(wal),
                int(flushes),
                [(core.user + core.nice + core.system + core.irq + core.softirq, sum(core[:8]))
                 for core in psutil.cpu_times(percpu=True)],
                self.waits.copy(),
                spent([client]),
            )  # fmt: skip

    @contextmanager
    def sampling(self) -> Any:
        thread = threading.Thread(target=self._run, daemon=True)
        self._stop.clear()
        self.spent = {}  # the number of an ended process may be another one's by now
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            with self._lock:
                self._sample_time()
                for event, count in self.connection.execute(WAITS):
                    self.waits[event] += count

    def _sample_time(self) -> None:
        """Keeps the last value of processes that have ended meanwhile, such as autovacuum's."""
        for pid in self._server():
            with suppress(OSError, ValueError, IndexError):
                self.spent[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

    def _server(self) -> Iterable[int]:
        if self.postmaster is None:
            return ()
        with suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self.postmaster)
            found = {self.postmaster, *(child.pid for child in postmaster.children())}
            return found - {self.pid}
        return ()

    def pin(self) -> bool:
        """Give the server a core of its own. Returns whether it has one."""
        return self.postmaster is not None and pin([self.postmaster, *self._server()], SERVER)

    def close(self) -> None:
        self.connection.close()


def pin(pids: Iterable[int], core: int) -> bool:
    """Let processes, and those that they will start, run only on one core."""
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        return False
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, {core})
    except OSError:
        return False
    return True
