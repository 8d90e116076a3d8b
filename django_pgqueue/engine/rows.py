"""Rows of statements, by name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django_pgqueue.types import Batch, Receipt, receipt_of

__all__ = ["BLOCKED", "EXHAUSTED", "RECHECK", "Deliveries", "Delivery", "deliveries"]

# Markers in the rows of read.sql that are no deliveries.
#: This message was delivered as often as allowed.
EXHAUSTED = "exhausted"
#: Messages are due that are not the head of their group.
BLOCKED = "blocked"
#: Groups may have got a head, which could come before what is ready.
RECHECK = "recheck"


class Delivery(NamedTuple):
    """A message as a read brings it. Moments are in microseconds since 1970, which cost less than
    dates; bodies and headers are JSON text."""

    note: str | None
    id: int
    read_ct: int
    #: The moment of the read: with ``read_ct`` it tells this delivery from every other one.
    read_at: int
    body: str | None
    headers: str | None
    enqueued_at: dt.datetime
    priority: int
    group_key: str | None
    attempts: int
    vt: int
    first_read_at: int | None
    #: When the message was scheduled for, if it was delayed. Only some statements return it.
    scheduled_at: dt.datetime | None = None
    #: The batch that shares one lease row with this message, if any.
    batch: Batch | None = None

    @property
    def receipt(self) -> Receipt:
        return receipt_of(self.id, self.read_ct, self.read_at, self.batch)


class Deliveries(list[Delivery]):
    """What a read leased, and what it failed."""

    #: Messages that had been delivered as often as allowed.
    exhausted: Sequence[Receipt] = ()


def deliveries(rows: Iterable[tuple[Any, ...]]) -> list[Delivery]:
    """Rows of a statement that reads, by name."""
    return [Delivery(*row) for row in rows]
