"""A consumer's connections: how they are opened, kept between messages, and cut when silent.

A connection can fall silent without an error: a router forgets it, a machine disappears, a pooler
hangs. The kernel notices the first two by keepalives and ``tcp_user_timeout``, which
:func:`configure` turns on. A pooler that hangs still acknowledges every packet, so the consumer's
own statements run under :func:`limited` as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import close_old_connections, connections

from django_pgqueue.handlers import Handler

# Arguments of psycopg or of a pool, which libpq does not know.
_NOT_FOR_LIBPQ = ("cursor_factory", "context", "prepare_threshold", "pool")
_LONGEST_NAME = 63
#: The settler, the heartbeat, the keeper of leases and the fetcher of a process.
_LOOPS = 4
#: psycopg_pool's default of min_size, which is also its default of max_size.
_POOL_SIZE = 4
_LOOK_EVERY = 0.1

_seconds = 30.0
_limits: set[Limit] = set()
_starting = threading.Lock()


def configure(seconds: float, name: str) -> None:
    """Set the defaults of every PostgreSQL connection that this process opens from now on.

    ``seconds`` is how long a connection may give no answer, ``name`` what pg_stat_activity shows.
    What the project has set in OPTIONS stays as it is.
    """
    global _seconds
    _seconds = seconds
    whole = max(2, int(seconds))
    defaults = {
        "connect_timeout": whole,
        "keepalives_idle": max(1, whole // 3),
        "keepalives_interval": max(1, whole // 6),
        "keepalives_count": 3,
        "tcp_user_timeout": whole * 1000,
        # A fallback: a name from PGAPPNAME or a service file takes precedence.
        "fallback_application_name": name[:_LONGEST_NAME],
    }
    for connection in connections.all():
        if connection.vendor == "postgresql":
            options = connection.settings_dict.setdefault("OPTIONS", {})
            for option, value in defaults.items():
                options.setdefault(option, value)


def parameters(alias: str) -> dict[str, Any]:
    """The arguments with which libpq reaches a database of Django's, by name."""
    # Django's wrapper knows which options are its own, and may have to start the server first.
    found = connections[alias].get_connection_params()
    return {
        name: value
        for name, value in found.items()
        if name not in _NOT_FOR_LIBPQ and value not in ("", None)
    }


# Pools


def pool_size(alias: str) -> int | None:
    """How many connections the pool of a database has at most; None without a pool."""
    pool = connections.settings[alias].get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    return int(options.get("max_size") or options.get("min_size", _POOL_SIZE))


def threads_of(handler: Handler, workers: int) -> int:
    """How many threads run a handler; async ones share one with an event loop."""
    return 1 if handler.is_async else workers


def pool_shortage(alias: str, workers: int) -> tuple[int, int] | None:
    """The size of a database's pool and the connections that a process with these workers wants,
    where these are more."""
    size, wanted = pool_size(alias), workers + _LOOPS
    return None if size is None or size >= wanted else (size, wanted)


def uses_pools() -> bool:
    """Whether any of the databases has a pool."""
    return any(each.get("OPTIONS", {}).get("pool") for each in connections.settings.values())


def give_back_pooled() -> None:
    """Return this thread's pooled connections, so that other threads can have them."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict.get("OPTIONS", {}).get("pool"):
            connection.close()


def close_old() -> None:
    """Close this thread's connections that are broken or past CONN_MAX_AGE."""
    # The check of a broken connection may wait for an answer that never comes.
    with limited():
        close_old_connections()


# Silence


@dataclass(eq=False)
class Limit:
    """A block of work, the connections it may wait on, and when they are cut."""

    seconds: float
    connections: Sequence[Any]
    deadline: float

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let this block take as long as it likes: it runs a handler."""
        self.deadline = float("inf")
        try:
            yield
        finally:
            self.deadline = time.monotonic() + self.seconds

    def check(self) -> None:
        """Cut the connections if the time is over, and start the time limit again."""
        now = time.monotonic()
        if now > self.deadline:
            self.deadline = now + self.seconds
            for connection in self.connections:
                cut(connection)


@contextlib.contextmanager
def limited(*others: Any, seconds: float | None = None) -> Iterator[Limit]:
    """Cut this thread's connections, or ``others``, when the block takes too long.

    The wait then ends in an ordinary OperationalError. ``seconds`` is that of :func:`configure`
    by default.
    """
    # Django's connections belong to their thread, so they are collected in it.
    seconds = _seconds if seconds is None else seconds
    limit = Limit(seconds, others or connections.all(), time.monotonic() + seconds)
    _limits.add(limit)
    if _checker is None or not _checker.is_alive():
        _start_checking()
    try:
        yield limit
    finally:
        _limits.discard(limit)


def cut(connection: Any) -> None:
    """Shut the socket down under a connection; its own thread sees the connection as lost."""
    connection = getattr(connection, "connection", connection)
    with contextlib.suppress(Exception):
        descriptor = os.dup(connection.fileno())
        with socket.socket(fileno=descriptor) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


_checker: threading.Thread | None = None


def _start_checking() -> None:
    global _checker
    with _starting:
        if _checker is None or not _checker.is_alive():
            _checker = threading.Thread(target=_check, name="pgqueue-limits", daemon=True)
            _checker.start()


def _check() -> None:
    while True:
        time.sleep(min(max(_seconds / 10, _LOOK_EVERY), 1.0))
        for limit in _limits.copy():
            limit.check()
