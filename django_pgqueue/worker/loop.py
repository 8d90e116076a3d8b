"""A task repeated in a thread of its own."""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext

from django.db import DatabaseError, InterfaceError, connections

from django_pgqueue import signals
from django_pgqueue.worker.connections import give_back_pooled, limited, uses_pools

_LONGEST_WAIT = 5.0


class Loop(threading.Thread):
    """Calls :meth:`tick` until it is stopped, and outlives a lost database.

    After an error it closes the thread's connections, so that the next tick opens new ones, and
    waits a little longer each time. A tick that is ``limited`` loses its connections when the
    database gives no answer for too long.
    """

    def __init__(
        self, name: str, *, limited: bool = False, awake: threading.Event | None = None
    ) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self.stopping = threading.Event()
        self._awake = awake or threading.Event()
        self._limited = limited
        self._failures = 0
        self._pooled = uses_pools()
        #: When a tick last succeeded, by time.monotonic().
        self.last_success = time.monotonic()

    def tick(self) -> float:
        """Run the task once; returns the seconds until the next time."""
        raise NotImplementedError

    def wake(self) -> None:
        """Run the task now."""
        self._awake.set()

    def stop(self) -> None:
        """End the loop after the current tick."""
        self.stopping.set()
        self._awake.set()

    def run(self) -> None:
        wait = 0.0
        try:
            while not self.stopping.is_set():
                try:
                    with limited() if self._limited else nullcontext():
                        wait = self.tick()
                    self._failures, self.last_success = 0, time.monotonic()
                except Exception as error:
                    # No error may end the loop: a consumer with a dead loop looks alive.
                    wait = self._after(error)
                if self._pooled:
                    give_back_pooled()
                self._awake.wait(wait)
                self._awake.clear()
        finally:
            connections.close_all()

    def _after(self, error: Exception) -> float:
        """Tell of an error; returns the seconds until the next try."""
        self._failures += 1
        wait = after_failures(self._failures)
        signals.database_failed.send_robust(self.name, operation=self.name, error=error, wait=wait)
        if isinstance(error, (DatabaseError, InterfaceError)):
            connections.close_all()
        return wait


def after_failures(number: int) -> float:
    """Seconds before the next try after ``number`` failures in a row, drawn at random so that
    processes do not try in step."""
    return float(min(0.05 * 2 ** min(number, 10), _LONGEST_WAIT) * random.uniform(0.5, 1))
