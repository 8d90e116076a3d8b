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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.core.cache import caches
from django.db import close_old_connections, connections
from psycopg.pq import TransactionStatus

from django_pgqueue.handlers import Handler

# Connection arguments of psycopg and its pool, which libpq does not know.
_NOT_FOR_LIBPQ = ("cursor_factory", "context", "prepare_threshold", "pool")
_LONGEST_NAME = 63
#: The number of loops that use a connection: fetch, settle, leases, presence.
_LOOPS = 4
#: psycopg_pool's default of min_size, which is also its default of max_size.
_POOL_SIZE = 4

#: How long a connection may be silent inside :func:`limited`.
_seconds = 30.0
_limits: set[Limit] = set()


def configure(seconds: float, name: str) -> None:
    """Set the options of every PostgreSQL connection that this process opens from now on.

    ``seconds``: how long a connection may be silent; ``name``: its name in pg_stat_activity. An
    option that the project has set in OPTIONS keeps its value.
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
    """libpq's connection parameters for one of Django's databases."""
    # Ask the database wrapper: it knows Django's own options, and a custom wrapper may start its
    # server here (django_pgqueue.embedded).
    found = connections[alias].get_connection_params()
    return {
        name: value
        for name, value in found.items()
        if name not in _NOT_FOR_LIBPQ and value not in ("", None)
    }


def is_open(alias: str) -> bool:
    """Whether this thread's connection is open, so that its last error concerned a statement."""
    connection = connections[alias].connection
    return connection is not None and not connection.closed


# Pools


def pool_size(alias: str) -> int | None:
    """The maximum number of connections in a database's pool; None without a pool."""
    pool = connections.settings[alias].get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    return int(options.get("max_size") or options.get("min_size", _POOL_SIZE))


def small_pools(
    workers: Iterable[tuple[str, Handler, int]],
) -> Iterator[tuple[str, int, int, int]]:
    """Yield the pools that are too small for a process with these workers.

    ``workers``: alias, handler, number of workers. Yields alias, pool size, threads and
    connections needed.
    """
    threads: Counter[str] = Counter()
    for alias, handler, count in workers:
        threads[alias] += 1 if handler.is_async else count  # async handlers share an event loop
    for alias, count in threads.items():
        size, needed = pool_size(alias), count + _LOOPS
        if size is not None and size < needed:
            yield alias, size, count, needed


def uses_pools() -> bool:
    """Whether any database has a connection pool."""
    return any(each.get("OPTIONS", {}).get("pool") for each in connections.settings.values())


def return_pooled() -> None:
    """Return this thread's connections to their pools, for other threads."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict.get("OPTIONS", {}).get("pool"):
            connection.close()


def close_old() -> None:
    """Close this thread's connections that are broken or past CONN_MAX_AGE."""
    # Django tests a connection by a query, and its answer may never come.
    with limited():
        close_old_connections()


def left_open(connection: Any) -> bool:
    """Whether a handler left a transaction on an open connection, or changed autocommit."""
    autocommit = connection.settings_dict["AUTOCOMMIT"]
    if connection.in_atomic_block or connection.autocommit is not autocommit:
        return True
    # Django does not know of a BEGIN that was sent as text.
    session = getattr(connection.connection, "pgconn", None)
    begun = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
    return session is not None and session.transaction_status in begun


# Caches


def open_caches() -> None:
    """Create this thread's cache objects, so that all runs of handlers share them.

    Django keeps them in the context, and each run has a copy of it: a cache object that is created
    in a run ends with it, and so do its connections.
    """
    for alias in caches:
        # A handler that uses an invalid cache gets its error.
        with contextlib.suppress(Exception):
            caches[alias]


# Silence


@dataclass(eq=False)
class Limit:
    """The time limit of a block: at ``deadline`` its connections are cut."""

    seconds: float
    connections: Sequence[Any]
    deadline: float

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the limit for a block, such as a handler; then restart the limit."""
        self.deadline = float("inf")
        try:
            yield
        finally:
            self.deadline = time.monotonic() + self.seconds

    def check(self) -> None:
        """If the deadline has passed, cut the connections and restart the limit."""
        now = time.monotonic()
        if now > self.deadline:
            self.deadline = now + self.seconds
            for connection in self.connections:
                cut(connection)


@contextlib.contextmanager
def limited(*others: Any, seconds: float | None = None) -> Iterator[Limit]:
    """Cut this thread's connections, or ``others``, when the block takes too long.

    The statement that waits then fails with an ordinary OperationalError. :func:`configure` sets
    the time; ``seconds`` may make it shorter.
    """
    seconds = _seconds if seconds is None else min(seconds, _seconds)
    # Django's connections belong to a thread, so collect them here, in that thread.
    limit = Limit(seconds, others or connections.all(), time.monotonic() + seconds)
    _limits.add(limit)
    _start_checking()
    try:
        yield limit
    finally:
        _limits.discard(limit)


def cut(connection: Any) -> None:
    """Shut down the socket of a connection. The thread that uses it gets an OperationalError."""
    connection = getattr(connection, "connection", connection)
    with contextlib.suppress(Exception):
        descriptor = os.dup(connection.fileno())
        with socket.socket(fileno=descriptor) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


@cache
def _start_checking() -> None:
    """Start the thread that checks the limits. A race may start two, which does no harm."""
    threading.Thread(target=_check, name="pgqueue-limits", daemon=True).start()


def _begin_anew() -> None:
    # A forked child does not inherit the thread. It must not cut the connections of its parent.
    _limits.clear()
    _start_checking.cache_clear()


os.register_at_fork(after_in_child=_begin_anew)


def _check() -> None:
    while True:
        time.sleep(min(max(_seconds / 10, 0.1), 1.0))
        for limit in _limits.copy():
            limit.check()
