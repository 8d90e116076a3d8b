"""One round of maintenance of one queue: its limits, its counts, how its steps are run."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import DatabaseError, connections, transaction

from django_pgqueue import ddl
from django_pgqueue.ddl.locks import briefly, milliseconds, settings_for
from django_pgqueue.engine.statements import load
from django_pgqueue.errors import QueueBusy
from django_pgqueue.maintenance.partitions import Partition, find_partitions
from django_pgqueue.maintenance.queues import OpenQueue
from django_pgqueue.sqlstates import QUERY_CANCELED, sqlstate

__all__ = ["Round"]

R = TypeVar("R")


@dataclass
class Round:
    """Every statement of a round is run here.

    ``patience`` is for how many seconds a step tries to get a lock, ``stall`` for how many a try
    may wait with others behind it. ``progress`` is called with the messages removed so far.
    """

    queue: OpenQueue
    patience: float
    stall: float
    progress: Callable[[int], None]
    counts: Counter[str] = field(default_factory=Counter)

    def tell(self) -> None:
        self.progress(self.counts["dropped"] + self.counts["pruned"])

    def partitions(self) -> list[Partition]:
        with connections[self.queue.alias].cursor() as cursor:
            return find_partitions(cursor, self.queue.pk)

    def now(self) -> dt.datetime:
        with connections[self.queue.alias].cursor() as cursor:
            return ddl.server_time(cursor)

    def value(self, sql: str, params: Any = None) -> Any:
        """The first value of the first row, or None."""
        with connections[self.queue.alias].cursor() as cursor:
            cursor.execute(sql, params)
            row = cursor.fetchone()
        return None if row is None else row[0]

    def fetch(
        self, name: str, params: Mapping[str, Any], partition: Partition | None = None
    ) -> list[tuple[Any, ...]]:
        """Run ``<name>.sql`` of this folder on the queue, or on one partition of it."""
        tables = dict(self.queue.tables)
        if partition is not None:
            tables |= {"message": partition.message, "archive": partition.archive}
        with connections[self.queue.alias].cursor() as cursor:
            cursor.execute(load(name, __package__).format_map(tables), params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def briefly(self, act: Callable[[Any], R]) -> R:
        """Do what needs locks, in a transaction of its own.

        The first try waits for 5 ms, each further one for twice as long, up to ``stall``; after
        each there is a pause of ten times that. So others wait for a tenth of the time at most.

        Raises QueueBusy after ``patience``, or when the work under the locks takes long.
        """

        def attempt(stall: float) -> R:
            with (
                transaction.atomic(using=self.queue.alias, durable=True),
                connections[self.queue.alias].cursor() as cursor,
                settings_for(
                    cursor,
                    lock_timeout=milliseconds(stall),
                    statement_timeout=milliseconds(self.stall * 5),
                ),
            ):
                return act(cursor)

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
