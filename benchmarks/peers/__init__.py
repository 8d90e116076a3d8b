"""The contestants: an adapter for each, used as its documentation says.

A contestant with queues to send to and read from offers :class:`Queues`, for scenarios that measure
single operations. A contestant that runs handlers is a :class:`Worker`, with its defaults and tuned
as its documentation advises.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from contextlib import nullcontext
from functools import cache, partial
from importlib import metadata
from typing import Any, Protocol

from django.db import transaction

from benchmarks import database
from benchmarks.payloads import BODY

#: By a contestant's label: its module here, and its requirements (Python distributions, a program,
#: or a Django module).
QUEUES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ours": ("ours", ()),
    "ours, bare cursor": ("ours_bare", ()),
    "PGMQ": ("pgmq", ("pgmq",)),
    "ours, PGMQ's functions": ("pgmq_functions", ()),
    "PGMQ, msgspec": ("pgmq_msgspec", ("pgmq", "msgspec")),
}
WORKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ours": ("ours", ()),
    "ours, tasks": ("ours_tasks", ("django.tasks",)),
    "django-tasks-db": ("django_tasks_db", ("django-tasks-db", "django.tasks")),
    "django-ox": ("django_ox", ("django-ox", "django.tasks")),
    "PgQueuer": ("pgqueuer", ("pgqueuer", "asyncpg")),
    "PGMQ's client": ("pgmq_client", ("pgmq", "psycopg-pool")),
    "Procrastinate": ("procrastinate", ("procrastinate",)),
    "graphile-worker": ("graphile_worker", ("npm",)),
}
#: Those with a limit, or with a reason to be beside them (scenarios/limits.py).
LIMITED: dict[str, tuple[str, tuple[str, ...]]] = {
    "ours": ("limited.ours", ()),
    "PgQueuer": ("limited.pgqueuer", WORKERS["PgQueuer"][1]),
    "Procrastinate": ("limited.procrastinate", WORKERS["Procrastinate"][1]),
    "django-ox": ("limited.django_ox", WORKERS["django-ox"][1]),
    "Celery": ("limited.celery", ("celery", "redis", "redis-server")),
    "Celery, one worker": ("limited.celery_alone", ("celery", "redis", "redis-server")),
}
ALL = {**QUEUES, **LIMITED, **WORKERS}


class Queues(Protocol):
    """A contestant's sends and reads. Each call is one transaction."""

    def create(self, queue: str, **options: Any) -> None: ...
    def drop(self, queue: str) -> None: ...
    def fill(self, queue: str, bodies: list[Any], count: int, delay: float = 0) -> None: ...
    def hold(self, queue: str, count: int) -> None: ...
    def send(self, queue: str, body: Any) -> int: ...
    def send_batch(self, queue: str, bodies: list[Any]) -> int: ...
    def cycle(self, queue: str, batch: int) -> int:
        """Read up to ``batch`` messages and archive them; returns how many."""
        ...


class Worker:
    """A contestant's consumer process, and its ways to enqueue.

    ``mode`` names the queue and its handler: ``drain`` does nothing, ``wait`` waits for 10 ms, and
    ``latency`` records its delay.
    """

    #: Shown in the results: how it runs by default, how when tuned, and which page advises that.
    default = ""
    tuned = ""
    documentation = ""
    #: The table from which workers claim rows.
    table = ""
    #: Whether one process runs several handlers at once.
    has_concurrency = True

    def __init__(self, *, is_tuned: bool = False) -> None:
        self.is_tuned = is_tuned
        self.connection = database.connect()

    def install(self) -> None:
        """Create the contestant's tables, if they do not exist."""

    def tune(self, mode: str) -> None:
        """Set table options to their defaults, or as the documentation advises."""

    def command(self, mode: str, concurrency: int | None = None) -> list[str]:
        """The command that starts a process; ``concurrency`` overrides its number of handlers."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Environment variables for its processes."""
        return {}

    def fill(self, count: int, mode: str) -> None:
        """Create a backlog, in any way: this is not measured."""
        self.enqueue_many([BODY] * count, mode)

    def enqueue(self, body: dict[str, Any], mode: str) -> None:
        """Enqueue one message in its own transaction."""
        raise NotImplementedError

    def enqueue_many(self, bodies: list[dict[str, Any]], mode: str) -> None:
        """Enqueue all, with the documented call for many. Without such a call: one by one, and when
        tuned in one transaction.
        """
        with transaction.atomic() if self.is_tuned else nullcontext():
            for body in bodies:
                self.enqueue(body, mode)

    def remaining(self, mode: str) -> int:
        """The number of messages that are not done."""
        raise NotImplementedError

    def clear(self, mode: str) -> None:
        """Remove everything, including finished messages."""
        raise NotImplementedError

    def count(self, query: str, *values: Any) -> int:
        row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self.connection.close()


def missing(label: str) -> str | None:
    """The first requirement of a contestant that is not installed, or None."""
    others = {
        "npm": lambda: shutil.which("npm") and shutil.which("node"),
        "redis-server": lambda: shutil.which("redis-server"),
        "django.tasks": lambda: importlib.util.find_spec("django.tasks"),
    }
    needed = ALL[label][1]
    return next((each for each in needed if not others.get(each, partial(_version, each))()), None)


def versions() -> dict[str, str]:
    """The versions of the installed peers."""
    others = {"npm", "redis-server", "django.tasks"}
    names = {name for _, needed in ALL.values() for name in needed} - others
    found = {name: _version(name) or "not installed" for name in sorted(names)}
    if not missing("graphile-worker"):
        found["graphile-worker"] = _module("graphile_worker").VERSION
        node = subprocess.run(["node", "--version"], capture_output=True, text=True)
        found["node"] = node.stdout.strip().removeprefix("v")
    if not missing("Celery"):
        found["redis-server"] = _module("limited.celery").version()
    if not missing("PGMQ"):
        found["PGMQ's SQL"] = _module("pgmq").version()
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def open_queues(label: str) -> Queues:
    """A contestant's adapter with its own connection, one per process."""
    return _module(QUEUES[label][0]).Queues()


def open_worker(label: str, *, is_tuned: bool = False) -> Worker:
    """A contestant's adapter, with its defaults or tuned."""
    return worker_class(label)(is_tuned=is_tuned)


def open_limited(label: str) -> Any:
    """A contestant's adapter with its limits, tuned: a ``benchmarks.peers.limited.Worker``."""
    return _module(LIMITED[label][0]).Worker(is_tuned=True)


def worker_class(label: str) -> type[Worker]:
    """The adapter class of a contestant."""
    kind: type[Worker] = _module(WORKERS[label][0]).Worker
    return kind


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.peers.{name}")
