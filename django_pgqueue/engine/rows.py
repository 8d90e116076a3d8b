"""The rows that statements return, as named tuples."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django_pgqueue.types import Batch, Receipt, receipt_of

__all__ = ["BLOCKED", "EXHAUSTED", "RECHECK", "Deliveries", "Delivery", "deliveries"]

# A row of read.sql with one of these notes is not a delivery but work for the reader.
#: The message has no deliveries left.
EXHAUSTED = "exhausted"
#: The message is due, but is not the head of its group.
BLOCKED = "blocked"
#: Not a message: some groups may lack a head, and their next messages may precede the ready ones.
RECHECK = "recheck"


class Delivery(NamedTuple):
    """A row of a read: a message, or a note for the reader.

    Bodies and headers are JSON text. Times are microseconds since 1970, which are fetched faster
    than timestamps.
    """

    note: str | None
    id: int
    read_ct: int
    #: When the message was read. Together with ``read_ct`` it identifies the delivery.
    read_at: int
    body: str | None
    headers: str | None
    enqueued_at: dt.datetime
    priority: int
    group_key: str | None
    attempts: int
    vt: int
    first_read_at: int | None
    #: The end of the delay that the sender asked for. Only some statements return it.
    scheduled_at: dt.datetime | None = None
    #: The batch that shares one lease row with this message, if any.
    batch: Batch | None = None

    @property
    def receipt(self) -> Receipt:
        return receipt_of(self.id, self.read_ct, self.read_at, self.batch)


class Deliveries(list[Delivery]):
    """The messages that a read leased."""

    #: The receipts of messages that the read failed, because they had no deliveries left.
    exhausted: Sequence[Receipt] = ()


def deliveries(rows: Iterable[tuple[Any, ...]]) -> list[Delivery]:
    """Convert the rows of a read to named tuples."""
    return [Delivery(*row) for row in rows]
