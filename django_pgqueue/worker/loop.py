"""A thread that repeats a task, and the waits between its runs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, TypeVar

from django.db import Error, connections

from django_pgqueue import signals
from django_pgqueue.worker.announcer import Announcer, send, use
from django_pgqueue.worker.connections import limited, return_pooled, uses_pools

T = TypeVar("T")

_LONGEST_WAIT = 5.0


class Failures:
    """The failures in a row of one operation, and when its next try is due.

    Announces each failure, and the first success after failures.
    """

    def __init__(self, sender: str, operation: str, **about: Any) -> None:
        """``about``: further arguments of the signals, such as the name of the queue."""
        self.count = 0
        #: The longest wait, in seconds.
        self.longest = _LONGEST_WAIT
        #: When the next try is due, by time.monotonic().
        self.due = 0.0
        self._sender = sender
        self._about = {"operation": operation, **about}

    def add(self, error: Exception, wait: float | None = None) -> float:
        """Record and announce a failure. Returns the seconds until the next try.

        The wait grows with each failure in a row, unless ``wait`` is given.
        """
        self.count += 1
        wait = min(after_failures(self.count), self.longest) if wait is None else wait
        self.due = time.monotonic() + wait
        send(signals.database_failed, self._sender, error=error, wait=wait, **self._about)
        return wait

    def end(self) -> None:
        """Announce that the operation works again."""
        count, self.count = self.count, 0
        send(signals.database_recovered, self._sender, failures=count, **self._about)


class Loop(threading.Thread):
    """Calls :meth:`tick` until it is stopped. No error ends it.

    After a database error the thread closes its connections, so that the next tick opens new ones.
    Each failure in a row makes the wait longer. With ``limited`` a tick's connections are cut when
    the database is silent for too long. Setting ``awake`` ends the wait between two ticks.
    """

    #: The operation that ``database_failed`` names; the loop's name if it is empty.
    operation = ""

    def __init__(
        self, name: str, *, limited: bool = False, awake: threading.Event | None = None
    ) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self.stopping = threading.Event()
        self._awake = awake or threading.Event()
        self._limited = limited
        self.failures = Failures(self.name, self.operation or self.name)
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
                    if self.failures.count:
                        self.failures.end()
                except Exception as error:
                    # A consumer whose loop has ended would look alive and do nothing.
                    wait = self.failures.add(error)
                    if isinstance(error, Error):
                        connections.close_all()
                if self._pooled:
                    return_pooled()
                if self._awake.wait(wait):  # else one that is set only now ends the next wait
                    self._awake.clear()
        finally:
            connections.close_all()


def after_failures(number: int) -> float:
    """Seconds before the next try after ``number`` failures in a row."""
    # At random, so that several processes do not try at the same moments.
    return float(min(0.05 * 2 ** min(number, 10), _LONGEST_WAIT) * random.uniform(0.5, 1))


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
