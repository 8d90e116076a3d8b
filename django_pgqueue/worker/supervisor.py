"""Runs several consumer processes, and replaces those that die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from django_pgqueue.engine.interrupts import handle

logger = logging.getLogger("django_pgqueue.consumer")

#: The environment variable with the supervisor's pid: children stop when that process is gone.
PARENT_VARIABLE = "PGQUEUE_SUPERVISOR_PID"
#: The environment variable with the number of a child, counted from zero.
NUMBER_VARIABLE = "PGQUEUE_PROCESS_NUMBER"

_LONGEST_WAIT = 30.0
#: After this many seconds of uptime a crash resets the restart back-off.
_HEALTHY = 60.0


def is_orphaned() -> bool:
    """Whether this process is the child of a supervisor that has ended."""
    parent = os.environ.get(PARENT_VARIABLE)
    return parent is not None and int(parent) != os.getppid()


def number() -> int | None:
    """The number of this child of a supervisor, counted from zero; None in any other process."""
    number = os.environ.get(NUMBER_VARIABLE)
    return None if number is None else int(number)


class Supervisor:
    """Runs this process's command line in several child processes, and restarts those that end.

    A first crash restarts the child at once, further crashes after growing waits. With ``drain``, a
    child that exits with 0 is not restarted.
    """

    def __init__(self, processes: int, graceful_timeout: float, *, drain: bool = False) -> None:
        self._processes = processes
        self._drain = drain
        self._graceful_timeout = graceful_timeout
        self._signals = 0

    def run(self) -> None:
        """Supervise until a signal comes, or every child has drained its queues."""
        handle(self._on_signal)
        slots = [_Slot(number, self._drain) for number in range(self._processes)]
        try:
            while not self._signals:
                for slot in slots:
                    slot.look_after()
                if all(slot.done for slot in slots):
                    return
                time.sleep(0.1)
        finally:
            self._stop(slots)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _stop(self, slots: list[_Slot]) -> None:
        """Send the children a SIGTERM for each signal, at least one; after a deadline, SIGKILL."""
        deadline = time.monotonic() + self._graceful_timeout + 10
        passed_on = 0
        while any(slot.alive for slot in slots):
            wanted = max(self._signals, 1)
            number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
            if number is signal.SIGKILL or wanted > passed_on:
                passed_on = wanted
                for slot in slots:
                    slot.send(number)
            time.sleep(0.05)


class _Slot:
    """Starts and restarts one child process, identified by its number."""

    def __init__(self, number: int, drain: bool) -> None:
        self._number = number
        self._drain = drain
        self._child: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._deaths = 0
        self._not_before = 0.0
        self.done = False

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)  # does nothing after the child's end

    def look_after(self) -> None:
        """Start the child, or restart it once its wait is over."""
        if self.done or self.alive or time.monotonic() < self._not_before:
            return
        if self._child is not None:
            self.done = self._drain and self._child.returncode == 0
            if not self.done:
                self._plan_restart(self._child)
            return
        command = [sys.executable, *sys.orig_argv[1:]]
        own = {PARENT_VARIABLE: str(os.getpid()), NUMBER_VARIABLE: str(self._number)}
        env = {**os.environ, **own}
        self._child = subprocess.Popen(command, env=env, start_new_session=True)
        self._started = time.monotonic()

    def _plan_restart(self, child: subprocess.Popen[bytes]) -> None:
        lived = time.monotonic() - self._started
        pid, code = child.pid, child.returncode
        self._child = None
        if code == 0 or lived > _HEALTHY:
            self._deaths = 0
            logger.info("consumer process %s ended with exit code %s; starting another", pid, code)
            return
        self._deaths += 1
        wait = 0.0 if self._deaths == 1 else min(2.0 ** (self._deaths - 2), _LONGEST_WAIT)
        self._not_before = time.monotonic() + wait
        logger.error(
            "consumer process %s died with exit code %s; starting another in %g s", pid, code, wait
        )
