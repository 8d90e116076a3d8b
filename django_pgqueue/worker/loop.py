"""A duty done again and again in a thread of its own."""

from __future__ import annotations

import random
import threading
import time

from django.db import DatabaseError, InterfaceError, connections

from django_pgqueue import signals
from django_pgqueue.worker.pools import give_back_pooled, uses_pools
from django_pgqueue.worker.watchdog import Watchdog

__all__ = ["Loop", "after_failures"]

_LONGEST_WAIT = 5.0


class Loop(threading.Thread):
    """Calls :meth:`tick` until it is told to stop, and outlives a lost database.

    After an error the connections of this thread are closed, so that the next tick makes new
    ones, and the loop waits a little longer each time.
    """

    def __init__(self, name: str, watchdog: Watchdog | None = None) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self.stopping = threading.Event()
        self._awake = threading.Event()
        self._watchdog = watchdog
        self._failures = 0
        self._pooled = uses_pools()
        #: When a tick last came to its end, by time.monotonic().
        self.last_success = time.monotonic()

    def tick(self) -> float:
        """Do the duty once; returns the seconds until the next time."""
        raise NotImplementedError

    def wake(self) -> None:
        """Do the duty now."""
        self._awake.set()

    def stop(self) -> None:
        """Ask the loop to end after the tick it is in."""
        self.stopping.set()
        self._awake.set()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._awake.wait(self._tick_safely())
                self._awake.clear()
        finally:
            connections.close_all()

    def _tick_safely(self) -> float:
        try:
            if self._watchdog is None:
                wait = self.tick()
            else:
                with self._watchdog.over():
                    wait = self.tick()
        except Exception as error:
            # Nothing a tick meets may end its loop: a consumer with a dead loop looks alive.
            self._failures += 1
            wait = after_failures(self._failures)
            signals.database_failed.send_robust(
                self.name, operation=self.name, error=error, wait=wait
            )
            if isinstance(error, (DatabaseError, InterfaceError)):
                connections.close_all()
            return wait
        finally:
            if self._pooled:
                give_back_pooled()
        self._failures = 0
        self.last_success = time.monotonic()
        return wait


def after_failures(number: int) -> float:
    """How long to wait before the next try, in seconds: longer each time, and never in step."""
    return float(min(0.05 * 2 ** min(number, 10), _LONGEST_WAIT) * random.uniform(0.5, 1))
