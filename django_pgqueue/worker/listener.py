"""Listens for notifications of new messages, on a connection of its own."""

from __future__ import annotations

from typing import Any

import psycopg

from django_pgqueue import signals
from django_pgqueue.engine.wake import CHANNEL
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.connections import limited, parameters
from django_pgqueue.worker.fetcher import Fetcher
from django_pgqueue.worker.loop import Loop

#: Seconds between two tests of a quiet connection.
_PROBE = 10.0
_PATIENCE = 0.5
#: How many times a pooler is tested for transaction mode.
_LOOKS = 3


class Refused(Exception):
    """LISTEN does not work on this database."""


class Listener(Loop):
    """LISTENs to one database, and passes the name of each queue with new messages to the fetcher.

    If LISTEN does not work it announces that and ends; the consumer then polls.
    """

    operation = "listen"

    def __init__(self, alias: str, fetcher: Fetcher, probe: float = _PROBE) -> None:
        super().__init__(f"listen-{alias}")
        self._alias = alias
        self._fetcher = fetcher
        self._probe = min(probe, _PROBE)

    def tick(self) -> float:
        """Listen until the connection is lost or the loop is stopped."""
        try:
            with _connect(self._alias) as connection:
                if self.failures.count:
                    self.failures.end()
                self._listen(connection)
        except Refused as reason:
            send(signals.listening_stopped, self._alias, reason=str(reason))
            self.stop()
        finally:
            self._fetcher.set_listening(self._alias, False)
        return 0.0

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        with limited(connection):
            if _is_shared(self._alias, connection):
                raise Refused("a pooler in transaction mode does not forward notifications")
            try:
                connection.execute(f"LISTEN {CHANNEL}")
            except psycopg.Error as error:
                if connection.closed:
                    raise
                raise Refused(str(error)) from error
        self._fetcher.set_listening(self._alias, True)
        self._fetcher.notified(None, None)  # notifications before LISTEN were missed
        quiet = 0.0
        while not self.stopping.is_set():
            quiet += _PATIENCE
            for notice in connection.notifies(timeout=_PATIENCE, stop_after=1):
                quiet = 0.0
                self._fetcher.notified(notice.payload or None, notice.pid)
            if quiet >= self._probe:
                quiet = 0.0
                with limited(connection):
                    connection.execute("SELECT 1")


def can_listen(alias: str) -> bool:
    """Whether notifications reach a consumer: a pooler in transaction mode drops them.

    Raises psycopg.Error if it cannot connect.
    """
    with _connect(alias) as connection:
        return not _is_shared(alias, connection)


def _connect(alias: str) -> psycopg.Connection[Any]:
    return psycopg.connect(**{"connect_timeout": 10, **parameters(alias)}, autocommit=True)


def _is_shared(alias: str, connection: psycopg.Connection[Any]) -> bool:
    """Whether a pooler gives this connection's backend to other clients between transactions.

    LISTEN would do harm there: another client would get the notifications, and the pooler would
    log each one as an error.
    """
    if _backend(connection) == connection.info.backend_pid:
        return False  # no pooler in between
    with _connect(alias) as other, limited(connection, other):
        for _look in range(_LOOKS):
            mine = _backend(connection)
            with other.transaction():
                # A pooler assigns the backend that was released last.
                if _backend(other) == mine or _backend(connection) != mine:
                    return True
    return False


def _backend(connection: psycopg.Connection[Any]) -> int:
    [(pid,)] = connection.execute("SELECT pg_backend_pid()")
    return int(pid)
