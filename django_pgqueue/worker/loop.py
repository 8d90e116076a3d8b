"""A thread that repeats a task, and the waits between its runs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TypeVar

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.engine.wake import THROTTLE
from django_pgqueue.worker.announcer import Announcer, send, use
from django_pgqueue.worker.connections import limited, return_pooled, uses_pools

T = TypeVar("T")

#: A message whose due time is at most this many seconds away counts as due now.
NOW = 0.001

_LONGEST_WAIT = 5.0
_FIRST = 0.008
_GROWTH_LISTENING = 3.0
_GROWTH_POLLING = 1.5


class Loop(threading.Thread):
    """Calls :meth:`tick` until it is stopped. No error ends it.

    After a database error the thread closes its connections, so that the next tick opens new ones.
    Each failure in a row makes the wait longer. With ``limited`` a tick's connections are cut when
    the database is silent for too long. Setting ``awake`` ends the wait between two ticks.
    """

    #: The longest wait after failures, in seconds.
    longest_wait = _LONGEST_WAIT

    def __init__(
        self, name: str, *, limited: bool = False, awake: threading.Event | None = None
    ) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self.stopping = threading.Event()
        #: The operation that ``database_failed`` names.
        self.operation = self.name
        self._awake = awake or threading.Event()
        #: Whether the last wait was ended by ``awake``.
        self._woken = False
        self._limited = limited
        self._failures = 0
        self._pooled = uses_pools()
        #: Sends the loop's signals. None: its own thread does.
        self.announcer: Announcer | None = None
        #: When a tick last succeeded, by time.monotonic().
        self.last_success = time.monotonic()

    def tick(self) -> float:
        """Run the task once. Returns the seconds until the next tick."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the loop after the current tick."""
        self.stopping.set()
        self._awake.set()

    def end(self) -> None:
        """Stop the loop, if it runs, and wait up to a second for its end."""
        self.stop()
        if self.is_alive():
            self.join(1.0)

    def run(self) -> None:
        wait = 0.0
        use(self.announcer)
        try:
            while not self.stopping.is_set():
                try:
                    with limited() if self._limited else nullcontext():
                        wait = self.tick()
                    self.last_success = time.monotonic()
                    if self._failures:
                        self._recover()
                except Exception as error:
                    # A consumer whose loop has ended would look alive and do nothing.
                    self._failures += 1
                    wait = min(after_failures(self._failures), self.longest_wait)
                    send(
                        signals.database_failed,
                        self.name,
                        operation=self.operation,
                        error=error,
                        wait=wait,
                    )
                    if isinstance(error, Error):
                        connections.close_all()
                if self._pooled:
                    return_pooled()
                self._woken = self._awake.wait(wait)
                self._awake.clear()
        finally:
            connections.close_all()

    def _recover(self) -> None:
        """Announce that the task works again, after failures."""
        failures, self._failures = self._failures, 0
        send(signals.database_recovered, self.name, operation=self.operation, failures=failures)


def after_failures(number: int) -> float:
    """Seconds before the next try after ``number`` failures in a row."""
    # At random, so that several processes do not try at the same moments.
    return float(min(0.05 * 2 ** min(number, 10), _LONGEST_WAIT) * random.uniform(0.5, 1))


def longer(wait: float, longest: float, *, listening: bool = True) -> float:
    """Return the wait before the next read. The last read, after ``wait`` seconds, found nothing.

    The first waits are short: while notifications are throttled, only a read finds new messages.
    Later waits grow faster in a process that listens to notifications.

    >>> [longer(wait, 1.0) for wait in (0.0, 0.008, 0.5)]
    [0.008, 0.012, 1.0]
    """
    growth = _GROWTH_LISTENING if listening and wait >= THROTTLE else _GROWTH_POLLING
    return min(max(wait * growth, _FIRST), longest)


def for_each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Call ``act`` for each item: a failure in one queue or database does not stop the others.

    Raises the first error at the end.
    """
    errors = []
    for item in items:
        try:
            act(item)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
