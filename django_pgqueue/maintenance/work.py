"""One round's work on one queue: its limits, and the results of its steps."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import DatabaseError, connections, transaction

from django_pgqueue.database.locks import (
    briefly,
    milliseconds,
    read_committed,
    settings_for,
)
from django_pgqueue.engine.sqlstates import QUERY_CANCELED, sqlstate
from django_pgqueue.engine.statements import load
from django_pgqueue.engine.times import server_time
from django_pgqueue.errors import QueueBusy
from django_pgqueue.maintenance.partitions import Partition, fetch_value, find_partitions
from django_pgqueue.maintenance.stored_queue import StoredQueue

R = TypeVar("R")


@dataclass
class Work:
    """One round on one queue: runs its statements, and holds its limits and results.

    ``patience``: the seconds for which a step tries to get its locks. ``stall``: the most seconds
    that one try waits for a lock, while other sessions wait behind it. ``progress``: called with
    the number of messages removed so far. ``counts``, ``before``, ``refused`` and ``foreign_lakes``
    are fields of :class:`~django_pgqueue.types.Maintained`.
    """

    queue: StoredQueue
    patience: float
    stall: float
    progress: Callable[[int], None]
    counts: Counter[str] = field(default_factory=Counter)
    before: dt.datetime | None = None
    refused: bool = False
    foreign_lakes: tuple[str, ...] = ()

    def tell(self) -> None:
        self.progress(self.counts["dropped"] + self.counts["pruned"])

    def partitions(self) -> list[Partition]:
        with connections[self.queue.alias].cursor() as cursor:
            return find_partitions(cursor, self.queue.pk)

    def now(self) -> dt.datetime:
        with connections[self.queue.alias].cursor() as cursor:
            return server_time(cursor)

    def value(self, sql: str, params: Any = None) -> Any:
        """Run a query, and return the first value of its first row, or None without rows."""
        with connections[self.queue.alias].cursor() as cursor:
            return fetch_value(cursor, sql, params)

    def fetch(
        self,
        name: str,
        params: Mapping[str, Any],
        partition: Partition | None = None,
        **names: str,
    ) -> list[tuple[Any, ...]]:
        """Run ``<name>.sql`` of this folder on the queue, or on one of its partitions.

        ``names`` are the values of placeholders other than the queue's own tables.
        """
        tables = {**self.queue.tables, **names}
        if partition is not None:
            tables |= {"message": partition.message, "archive": partition.archive}
        with connections[self.queue.alias].cursor() as cursor:
            cursor.execute(load(name, __package__).format_map(tables), params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def briefly(self, act: Callable[..., R], *args: Any) -> R:
        """Run ``act(cursor, *args)``, which takes locks, in a transaction of its own.

        The first try waits up to 5 ms for the locks. Each further try waits twice as long, up to
        ``stall``. The pause after a try is ten times as long as its wait, so that other sessions
        are blocked for at most a tenth of the time.

        Raises QueueBusy after ``patience``, or if the work under the locks takes too long.
        """

        is_alone = not connections[self.queue.alias].in_atomic_block

        def attempt(stall: float) -> R:
            with (
                transaction.atomic(using=self.queue.alias, durable=True),
                connections[self.queue.alias].cursor() as cursor,
                read_committed(cursor, is_alone),
                settings_for(
                    cursor,
                    lock_timeout=milliseconds(stall),
                    statement_timeout=milliseconds(self.stall * 5),
                ),
            ):
                return act(cursor, *args)

        try:
            return briefly(attempt, self._tries(), self.queue.name, self.patience)
        except DatabaseError as error:
            if sqlstate(error) != QUERY_CANCELED:
                raise
            raise QueueBusy(self.queue.name, self.patience) from error

    def _tries(self) -> Iterator[tuple[float, float]]:
        stall = min(0.005, self.stall)
        while True:
            yield stall, stall * 10
            stall = min(stall * 2, self.stall)
            self.tell()
