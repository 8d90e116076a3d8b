"""Purge marks: how a read notices that messages were removed before it had read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from pyspark_pgqueue.errors import DataLost
from pyspark_pgqueue.source.database import SELECTED, Queue, selection
from pyspark_pgqueue.source.offsets import EARLIEST, Offset
from pyspark_pgqueue.source.options import Options


class Mark(NamedTuple):
    """A purge mark: archived messages of transactions below ``below_xid`` may have been removed."""

    queue_id: int
    queue: str
    below_xid: int
    dropped: bool
    version: str  # changes with every removal


@dataclass(frozen=True)
class Guard:
    """Refuses a task whose rows were removed since it was planned.

    A removal raises the queue's purge mark in the same transaction. A task therefore checks the
    marks in the snapshot in which it reads.
    """

    queue_ids: tuple[int, ...]
    start: Offset
    #: For a batch read: the marks at planning time. None for a stream: no row after its start may
    #: have been removed.
    planned: tuple[Mark, ...] | None = None

    def lost(self, marks: Iterable[Mark]) -> list[Mark]:
        """Return the marks which show that rows of this read were removed."""
        if self.planned is None:
            return [mark for mark in marks if self.start.may_lack(mark.below_xid)]
        known = {mark.queue_id: mark.version for mark in self.planned}
        return [
            mark
            for mark in marks
            if known.get(mark.queue_id) != mark.version
            and (self.start.since == EARLIEST or self.start.may_lack(mark.below_xid))
        ]

    def check(self, marks: Iterable[Mark]) -> None:
        """Raise DataLost if a mark shows that rows of this read were removed."""
        for mark in self.lost(marks):
            raise DataLost(mark.queue, dropped=mark.dropped, planned=self.planned is not None)


def purged(queue_ids: Iterable[int]) -> str:
    """The query for the purge marks of some queues, including dropped ones."""
    ids = ",".join(map(str, queue_ids))
    return (
        "SELECT p.queue_id, coalesce(q.name, p.dropped), p.below_xid, q.id IS NULL, "
        "p.xmin::text FROM pgqueue_purge_mark p LEFT JOIN pgqueue_queue q ON q.id = p.queue_id "
        f"WHERE p.queue_id = ANY ('{{{ids}}}'::integer[])"
    )


def marks(
    connection: psycopg.Connection[Any], options: Options, chosen: Sequence[Queue]
) -> list[Mark]:
    """The purge marks of the selected queues, and of dropped queues that match the selection."""
    rows = connection.execute(
        "SELECT queue_id FROM pgqueue_purge_mark WHERE dropped <> '' AND "
        + SELECTED.format(name="dropped"),
        selection(options),
    ).fetchall()
    ids = [*(pk for pk, _ in chosen), *(pk for (pk,) in rows)]
    return [Mark._make(row) for row in connection.execute(purged(ids))]
