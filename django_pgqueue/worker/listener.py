"""Hears of new messages, on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from django_pgqueue import signals
from django_pgqueue.wake import CHANNEL
from django_pgqueue.worker.connecting import parameters
from django_pgqueue.worker.watchdog import Watchdog

__all__ = ["Listener"]

#: How often a quiet connection is asked whether it is still there, in seconds.
_PROBE = 10.0
_PATIENCE = 0.5
_LONGEST_BACKOFF = 5.0

_KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Listener(threading.Thread):
    """LISTENs to one database, and calls ``notified`` with the name of each queue it hears of.

    ``notified(None)`` means that any queue may have got messages: after each new connection,
    since nobody knows what was missed without one. ``heard`` says whether a connection is up.
    """

    def __init__(
        self,
        alias: str,
        watchdog: Watchdog,
        notified: Callable[[str | None], None],
        heard: Callable[[str, bool], None],
        probe: float = _PROBE,
    ) -> None:
        super().__init__(name=f"pgqueue-listen-{alias}", daemon=True)
        self._alias = alias
        self._watchdog = watchdog
        self._notified = notified
        self._heard = heard
        self._probe = min(probe, _PROBE)
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        backoff = 0.0
        while not self._stopping.wait(backoff):
            try:
                with self._connect() as connection:
                    backoff = 0.0
                    self._listen(connection)
            except Exception as error:
                backoff = min(max(backoff * 2, 0.1), _LONGEST_BACKOFF)
                signals.database_failed.send_robust(
                    self.name, operation="listen", error=error, wait=backoff
                )
            finally:
                self._heard(self._alias, False)

    def _connect(self) -> psycopg.Connection[Any]:
        options = {**_KEEPALIVE, "connect_timeout": 10, **parameters(self._alias)}
        return psycopg.connect(**options, autocommit=True)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        with self._watchdog.over(connection):
            connection.execute(f"LISTEN {CHANNEL}")
        self._heard(self._alias, True)
        self._notified(None)
        quiet = 0.0
        while not self._stopping.is_set():
            quiet += _PATIENCE
            for notice in connection.notifies(timeout=_PATIENCE, stop_after=1):
                quiet = 0.0
                self._notified(notice.payload or None)
            if quiet >= self._probe:
                quiet = 0.0
                with self._watchdog.over(connection):
                    connection.execute("SELECT 1")
