"""Checks, before each measurement, that nothing else uses the machine.

There are three measures: processor use by others while the benchmark waits (or else the load
average), the hypervisor's share, and the variation of a fixed calculation's duration.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Machine", "Process", "Times", "Watch", "spent"]

#: Above this load average per processor, other programs count as disturbing. It covers the last
#: minute, not the present, so it counts only without /proc/stat.
LOAD = 0.75
#: The share of all processors that others may use while the benchmark waits.
OTHERS = 0.15
#: The share that the hypervisor may take over the run.
STEAL = 0.05
#: The allowed ratio of the slowest to the fastest calibration, among the middle four fifths.
SPREAD = 1.3

WINDOW = 0.3
TURNS = 200_000


class Times(NamedTuple):
    """Seconds of all processors together, since the machine's start."""

    total: float
    idle: float
    steal: float

    @classmethod
    def read(cls) -> Times | None:
        """The times in the first line of /proc/stat, on Linux."""
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        return cls.parse(line)

    @classmethod
    def parse(cls, line: str) -> Times:
        """Parse ``cpu user nice system idle iowait irq softirq steal ...``, in hundredths of a
        second.
        """
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) / 100 for field in line.split()[1:9]
        )
        busy = user + nice + system + irq + softirq
        return cls(busy + idle + iowait + steal, idle + iowait, steal)


class Process(NamedTuple):
    """A process: its parent, and the processor seconds of itself and its ended children."""

    parent: int
    seconds: float

    @classmethod
    def parse(cls, stat: str) -> Process:
        """Parse /proc/<pid>/stat: ``pid (name) state ppid ... utime stime cutime cstime ...``."""
        fields = stat.rpartition(")")[2].split()
        return cls(int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))

    @classmethod
    def all(cls) -> dict[int, Process]:
        """Every running process by its id; empty without /proc."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            # The process may end between listing and reading.
            with suppress(OSError):
                found[int(path.parent.name)] = cls.parse(path.read_text())
        return found


def spent(
    processes: dict[int, Process], roots: Iterable[int], without: Iterable[int] = ()
) -> float:
    """Processor seconds of the processes ``roots`` and of their descendants.

    Unlike elapsed time, it depends little on the machine's other work.
    """
    left, seen = list(roots), set(without)
    seconds = 0.0
    while left:
        pid = left.pop()
        if pid not in seen and pid in processes:
            seconds += processes[pid].seconds
            left += [child for child, process in processes.items() if process.parent == pid]
        seen.add(pid)
    return seconds


@dataclass
class Machine:
    """The machine during a run: calibrations, and the shares used by others."""

    cores: int
    load: float
    calibrations: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    steal: float = 0.0

    def disturbances(self) -> list[str]:
        """Why this machine is not quiet; empty if it is."""
        found = []
        if not self.others and self.load > LOAD * self.cores:
            found.append(f"a load average of {self.load:.1f} before the start")
        busy = sum(share > OTHERS for share in self.others)
        if busy > len(self.others) / 10:
            found.append(
                f"other processes used more than {OTHERS:.0%} of the processors "
                f"in {busy} of {len(self.others)} looks"
            )
        if self.steal > STEAL:
            found.append(f"the hypervisor took {self.steal:.0%} of the processors' time")
        if (spread := self.spread) > SPREAD:
            found.append(f"the same arithmetic took up to {spread:.2f} times as long")
        return found

    @property
    def spread(self) -> float:
        """The ratio of slowest to fastest calibration, without the tenth at either end."""
        if not self.calibrations:
            return 1.0
        ordered = sorted(self.calibrations)
        cut = len(ordered) // 10
        kept = ordered[cut : len(ordered) - cut]
        return kept[-1] / kept[0]


class Watch:
    """Watches the machine while the benchmark waits."""

    def __init__(self) -> None:
        self.machine = Machine(os.cpu_count() or 1, os.getloadavg()[0])
        self._began = Times.read()

    def look(self) -> None:
        """Takes less than half a second: measures others' processor use, then a calculation."""
        before = Times.read()
        time.sleep(WINDOW)
        after = Times.read()
        if before and after and self._began and after.total > before.total:
            idle = (after.idle - before.idle) / (after.total - before.total)
            self.machine.others.append(1 - idle)
            total = after.total - self._began.total
            self.machine.steal = (after.steal - self._began.steal) / total
        # The median of five: one may have lost its processor meanwhile.
        self.machine.calibrations.append(statistics.median(_arithmetic() for _ in range(5)))


def _arithmetic() -> float:
    started = time.perf_counter()
    sum(range(TURNS))
    return time.perf_counter() - started
