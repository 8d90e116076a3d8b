"""Rows of statements, by name."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Iterable
from typing import Any, NamedTuple

from django_pgqueue import ddl
from django_pgqueue.types import Batch, Receipt

__all__ = ["BLOCKED", "EXHAUSTED", "RECHECK", "Delivery", "deliveries", "moment"]

# Notes of read.sql: rows that are no deliveries.
#: The deliveries of this message have run out.
EXHAUSTED = "exhausted"
#: Messages are due whose turn in their group has not come.
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
    #: Of a message that was put off until then; only where the statement says so.
    scheduled_at: dt.datetime | None = None
    #: The messages it was leased with as one row, if it was.
    batch: Batch | None = None

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.id, self.read_ct, self.read_at)


def deliveries(rows: Iterable[tuple[Any, ...]]) -> list[Delivery]:
    """Rows of a statement that reads, by name."""
    return [Delivery(*row) for row in rows]


def moment(microseconds: int, connection: Any) -> dt.datetime:
    """A moment as Django reads dates from this connection: aware, or naive without USE_TZ."""
    found = ddl.moment(microseconds)
    if connection.timezone is None:
        return found.astimezone(zoneinfo.ZoneInfo(connection.timezone_name)).replace(tzinfo=None)
    return found.astimezone(connection.timezone)
