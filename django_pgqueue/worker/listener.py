"""Hears of new messages, on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from django_pgqueue import signals
from django_pgqueue.wake import CHANNEL
from django_pgqueue.worker.connections import limited, parameters

#: How often a quiet connection is asked whether it is still there, in seconds.
_PROBE = 10.0
_PATIENCE = 0.5
_LONGEST_BACKOFF = 5.0
#: Tries to tell a pooler in transaction mode from one in session mode.
_LOOKS = 3

_BACKEND = "SELECT pg_backend_pid()"


class Refused(Exception):
    """LISTEN does not work on this database."""


class Listener(threading.Thread):
    """LISTENs to one database, and calls ``notified`` with the name of each queue it hears of.

    ``notified(None)`` means that any queue may have got messages: after each new connection, for
    what was missed without one. ``heard`` says whether a connection is up. Where LISTEN does not
    work the thread says so once and ends: the consumer polls.
    """

    def __init__(
        self,
        alias: str,
        notified: Callable[[str | None], None],
        heard: Callable[[str, bool], None],
        probe: float = _PROBE,
    ) -> None:
        super().__init__(name=f"pgqueue-listen-{alias}", daemon=True)
        self._alias = alias
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
                with _connect(self._alias) as connection:
                    backoff = 0.0
                    self._listen(connection)
            except Refused as reason:
                signals.listening_stopped.send_robust(self._alias, reason=str(reason))
                return
            except Exception as error:
                backoff = min(max(backoff * 2, 0.1), _LONGEST_BACKOFF)
                signals.database_failed.send_robust(
                    self.name, operation="listen", error=error, wait=backoff
                )
            finally:
                self._heard(self._alias, False)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        with limited(connection):
            if _is_shared(self._alias, connection):
                raise Refused("a pooler in transaction mode passes no notifications on")
            try:
                connection.execute(f"LISTEN {CHANNEL}")
            except psycopg.Error as error:
                if connection.closed:
                    raise
                raise Refused(str(error)) from error
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
                with limited(connection):
                    connection.execute("SELECT 1")


def can_listen(alias: str) -> bool:
    """Whether a consumer hears of new messages on this database: not behind a pooler in transaction
    mode. Raises what psycopg does when there is no connection."""
    with _connect(alias) as connection:
        return not _is_shared(alias, connection)


def _connect(alias: str) -> psycopg.Connection[Any]:
    return psycopg.connect(**{"connect_timeout": 10, **parameters(alias)}, autocommit=True)


def _is_shared(alias: str, connection: psycopg.Connection[Any]) -> bool:
    """Whether other clients get this connection's backend between its transactions.

    To LISTEN on such a backend would be worse than useless: it hears for another client, and its
    pooler logs each notification as one that it cannot pass on.
    """
    if _backend(connection) == connection.info.backend_pid:
        return False  # no pooler in between
    with _connect(alias) as other, limited(connection, other):
        for _look in range(_LOOKS):
            mine = _backend(connection)
            with other.transaction():
                # A pooler gives out the backend that was used last.
                if _backend(other) == mine or _backend(connection) != mine:
                    return True
    return False


def _backend(connection: psycopg.Connection[Any]) -> int:
    for (pid,) in connection.execute(_BACKEND):
        return int(pid)
    raise psycopg.OperationalError("no answer to a SELECT")
