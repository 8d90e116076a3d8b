"""Who is measured: an adapter each, used the way its own documentation says.

What has queues to send to and read from offers the same methods here (:class:`Queues`); what is
only a worker is in the consumer scenarios alone (:class:`Worker`).
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata
from typing import Any, Protocol

__all__ = ["Queues", "Worker", "missing", "open_queues", "open_worker", "versions"]

#: The contestant's label, its module here, and the distributions that have to be installed.
LABELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ours": ("ours", ()),
    "ours, bare cursor": ("ours_bare", ()),
    "PGMQ": ("pgmq", ("pgmq",)),
    "PGMQ, msgspec": ("pgmq_msgspec", ("pgmq", "msgspec")),
    "PgQueuer": ("pgqueuer", ("pgqueuer", "asyncpg")),
    "Procrastinate": ("procrastinate", ("procrastinate",)),
    "django-tasks-db": ("django_tasks_db", ("django-tasks-db",)),
}


class Queues(Protocol):
    """A contestant's sends and reads. Each call is a transaction of its own."""

    def create(self, queue: str, **options: Any) -> None: ...
    def drop(self, queue: str) -> None: ...
    def fill(self, queue: str, bodies: list[Any], count: int, delay: float = 0) -> None:
        """Send ``count`` messages, the fastest way there is; delayed by seconds."""
        ...

    def hold(self, queue: str, count: int) -> None:
        """Read ``count`` messages and leave them in flight for an hour."""
        ...

    def send(self, queue: str, body: Any) -> int: ...
    def send_batch(self, queue: str, bodies: list[Any]) -> int: ...
    def cycle(self, queue: str, batch: int) -> int:
        """Read up to ``batch`` messages and archive them; returns how many."""
        ...


class Worker(Protocol):
    """A consumer process, and what sends to it.

    The ``mode`` is the handler: ``drain`` does nothing, ``latency`` notes how late it was called.
    """

    #: How many messages are worth sending to see its rate.
    most: int

    def install(self) -> None: ...
    def command(self, mode: str) -> list[str]: ...
    def fill(self, count: int, mode: str) -> None: ...
    def send(self, body: dict[str, Any], mode: str) -> None: ...
    def remaining(self, mode: str) -> int: ...
    def clear(self, mode: str) -> None: ...
    def close(self) -> None: ...


def missing(label: str) -> str | None:
    """The distribution that a contestant lacks, or None."""
    for distribution in LABELS[label][1]:
        try:
            metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return distribution
    return None


def versions() -> dict[str, str]:
    """The versions of the peers that are installed."""
    found = {}
    for _, distributions in LABELS.values():
        for name in distributions:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "not installed"
    return found


@cache
def open_queues(label: str) -> Queues:
    """The adapter of a contestant, with a connection of its own; one in each process."""
    return _module(label).Queues()


def open_worker(label: str) -> Worker:
    return _module(label).Worker()


def _module(label: str) -> Any:
    return importlib.import_module(f"benchmarks.peers.{LABELS[label][0]}")
