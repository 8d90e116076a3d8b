"""Cuts connections that are waited on for too long.

A connection can go silent: a router forgets it, a proxy swallows its packets, and no error ever
comes. psycopg waits for ever then. Shutting the socket down from outside turns the wait into an
ordinary lost connection, which the loop knows how to mend.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections

__all__ = ["Watch", "Watchdog", "cut"]


class Watch:
    """One block of work, and the connections it may wait on."""

    def __init__(self, seconds: float, watched: Sequence[Any]) -> None:
        self._seconds = seconds
        self._watched = watched
        self._deadline = time.monotonic() + seconds

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """What runs in this block may take as long as it likes."""
        self._deadline = float("inf")
        try:
            yield
        finally:
            self._deadline = time.monotonic() + self._seconds

    def look(self) -> None:
        """Cut the connections if the time is over."""
        now = time.monotonic()
        if now > self._deadline:
            # A block that goes on, over a connection made anew, is given its time anew.
            self._deadline = now + self._seconds
            for connection in self._watched:
                cut(connection)


class Watchdog(threading.Thread):
    """Watches work on Django's connections, or on any psycopg connection given."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="pgqueue-watchdog", daemon=True)
        self._seconds = seconds
        self._watches: set[Watch] = set()
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def over(self, *others: Any) -> Iterator[Watch]:
        """Whatever runs in this block gets so many seconds.

        After that this thread's connections are cut, or ``others`` in place of them; and again
        when as much time has passed once more.
        """
        # Django's connections belong to their thread: they are collected in it.
        watch = Watch(self._seconds, others or connections.all())
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(min(self._seconds / 4, 1.0)):
            for watch in self._watches.copy():
                watch.look()


def cut(connection: Any) -> None:
    """Shut the socket down under a connection; its own thread sees it as closed."""
    connection = getattr(connection, "connection", connection)
    with contextlib.suppress(Exception):
        descriptor = os.dup(connection.fileno())
        with socket.socket(fileno=descriptor) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
