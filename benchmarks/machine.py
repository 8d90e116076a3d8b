"""Checks, before each measurement, that nothing else uses the machine.

There are three measures: processor use by others while the benchmark waits, the hypervisor's share,
and the variation of a fixed calculation's duration.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

__all__ = ["Machine", "Watch", "family", "spent"]

#: The share of all processors that others may use while the benchmark waits.
OTHERS = 0.15
#: The share of processor time that the hypervisor may take during the run.
STEAL = 0.05
#: The allowed ratio of the slowest to the fastest calibration, among the middle four fifths.
SPREAD = 1.3

WINDOW = 0.3
TURNS = 200_000


def family(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Processes and their descendants."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            yield process
            yield from process.children(recursive=True)


def spent(pids: Iterable[int], without: int | None = None) -> float:
    """Processor seconds of processes and their descendants, ended ones included.

    Unlike elapsed time, it depends little on the machine's other work.
    """
    seconds = 0.0
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            if process.pid != without:
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@dataclass
class Machine:
    """The machine during a run: calibrations, and the shares used by others."""

    calibrations: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    steal: float = 0.0

    def disturbances(self) -> list[str]:
        """Why this machine is not quiet; empty if it is."""
        found = []
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
        self.machine = Machine()
        self._began = psutil.cpu_times()

    def look(self) -> None:
        """Takes less than half a second: measures others' processor use, then a calculation."""
        self.machine.others.append(psutil.cpu_percent(WINDOW) / 100)
        now = psutil.cpu_times()
        if hasattr(now, "steal"):
            total = sum(now) - sum(self._began)
            self.machine.steal = (now.steal - self._began.steal) / total
        # The median of five, since another process may interrupt one.
        self.machine.calibrations.append(statistics.median(_arithmetic() for _ in range(5)))


def _arithmetic() -> float:
    started = time.perf_counter()
    sum(range(TURNS))
    return time.perf_counter() - started
