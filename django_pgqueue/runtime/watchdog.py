"""Cuts the connection of a loop that waits too long for an answer.

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
from collections.abc import Iterator
from typing import Any

from django.db import connections

__all__ = ["Watchdog", "cut"]


class Watchdog(threading.Thread):
    """Watches ticks that use Django's connections, or any psycopg connection given."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="pgqueue-watchdog", daemon=True)
        self._seconds = seconds
        self._watched: dict[int, tuple[float, list[Any]]] = {}
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def over(self, owner: object, *others: Any) -> Iterator[None]:
        """Whatever runs in this block gets so many seconds.

        After that this thread's connections are cut, or ``others`` in place of them.
        """
        # Django's connections belong to their thread: they are collected in it.
        watched: list[Any] = list(others or connections.all())
        self._watched[id(owner)] = time.monotonic() + self._seconds, watched
        try:
            yield
        finally:
            self._watched.pop(id(owner), None)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(min(self._seconds / 4, 1.0)):
            now = time.monotonic()
            for owner, (deadline, watched) in list(self._watched.items()):
                if now > deadline:
                    self._watched.pop(owner, None)
                    for connection in watched:
                        cut(connection)


def cut(connection: Any) -> None:
    """Shut the socket down under a connection; its own thread sees it as closed."""
    connection = getattr(connection, "connection", connection)
    with contextlib.suppress(Exception):
        descriptor = os.dup(connection.fileno())
        with socket.socket(fileno=descriptor) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
